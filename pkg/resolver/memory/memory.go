/*
Copyright The elasti-apiserver Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Package memory counts the bytes that the connections of clients cost a
// resolver, and bounds them, over the process and for each service.
//
// A service has an Account. What waits for a pod is held: it can be shed, so
// that a service that holds less than another finds room at the expense of the
// one that holds most. What a connection costs while it is open, such as its
// goroutine, its buffers and the windows it has granted, is fixed: it cannot be
// taken back, so a service may have as much of it as is still free, at most.
// One service alone gets half of the limit, two that want all a third each, and
// there is always room for another.
package memory

import (
	"errors"
	"sync"
)

var (
	// ErrProcessLimit is returned when everything that the process may hold is
	// taken, and no other service takes more than this one.
	ErrProcessLimit = errors.New("the resolver already holds as many bytes as its --max-held-bytes allows")
	// ErrServiceLimit is returned when a service takes as much as one service may.
	ErrServiceLimit = errors.New("the service already holds as many bytes as --max-held-bytes-per-service allows")
	// ErrShed is what a waiter gets whose place was given to a service that holds
	// less.
	ErrShed = errors.New("the resolver needs the bytes for services that hold less, as it holds as many as its --max-held-bytes allows")
)

// IsLimit reports whether an error says that there is no room.
func IsLimit(err error) bool {
	return errors.Is(err, ErrProcessLimit) || errors.Is(err, ErrServiceLimit)
}

// Limits bound a Budget, in bytes.
type Limits struct {
	// Process bounds what all accounts take together.
	Process int64
	// PerService bounds what one account takes. 0: only Process does.
	PerService int64
}

// Budget is what all services of a process may take. It is safe for concurrent
// use.
type Budget struct {
	limits Limits

	mu   sync.Mutex
	used int64
	// accounts are those that take something.
	accounts map[*Account]struct{}
}

// NewBudget returns a budget of which nothing is taken.
func NewBudget(limits Limits) *Budget {
	return &Budget{limits: limits, accounts: map[*Account]struct{}{}}
}

// Used returns how many bytes are taken.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Open returns an account that takes nothing yet. Shed is asked to give back at
// least a number of held bytes, newest first, and returns how many it gave
// back. It may be called from any goroutine that calls Take, with no lock of the
// budget held. Nil: what the account holds is never shed.
func (b *Budget) Open(shed func(bytes int64) int64) *Account {
	return &Account{budget: b, shed: shed}
}

// Account is what one service takes of a Budget. It is safe for concurrent use.
type Account struct {
	budget *Budget
	shed   func(bytes int64) int64

	// Guarded by the mutex of the budget.
	held, fixed int64
	// payer is the account that the bytes of this one count for. Nil: itself. Guarded
	// by the mutex of the budget.
	payer *Account
}

// Branch returns an account of a part of what a takes: its charges are charges of
// a, until Move makes all of them those of another account at once. What it takes
// is fixed; it must hold nothing.
func (a *Account) Branch() *Account { return &Account{budget: a.budget, payer: a} }

// Payer returns the account that the bytes of a count for, which is a itself unless
// a is a branch.
func (a *Account) Payer() *Account {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	return a.paidBy()
}

// paidBy is Payer for callers that hold the mutex of the budget.
func (a *Account) paidBy() *Account {
	if a.payer != nil {
		return a.payer
	}
	return a
}

// Used returns how many bytes the account takes.
func (a *Account) Used() int64 {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	return a.held + a.fixed
}

// maxRounds bounds how often Take has others shed before it gives up: what they
// give back may be taken by somebody else meanwhile.
const maxRounds = 8

// Take counts bytes more as held; Give takes that back. When there is no room,
// the accounts that take most are made to shed first, as long as they take more
// than this one. It fails with ErrProcessLimit or ErrServiceLimit, and counts
// nothing then. The caller must hold no lock that a shed function takes.
func (a *Account) Take(bytes int64) error { return a.claim(bytes, false) }

// claim counts bytes more, as held or as fixed, and has others shed where there is
// no room.
func (a *Account) claim(bytes int64, fixed bool) error {
	return shedding(func(exhausted map[*Account]bool) (*Account, int64, error) {
		return a.budget.claim(a, bytes, fixed, exhausted)
	})
}

// Move makes what a branch takes, and what is charged to it from now on, that of
// another account. When there is no room for it there, accounts that take most are
// made to shed first, as with Take. It fails with ErrProcessLimit or
// ErrServiceLimit, and changes nothing then. The caller must hold no lock that a
// shed function takes.
func (a *Account) Move(to *Account) error {
	return shedding(func(exhausted map[*Account]bool) (*Account, int64, error) {
		return a.budget.move(a, to, exhausted)
	})
}

// shedding calls attempt until it succeeds or fails for good. It returns which
// account should shed how much before the next attempt, if any.
func shedding(attempt func(exhausted map[*Account]bool) (victim *Account, missing int64, err error)) error {
	// exhausted are those that have nothing more to shed.
	var exhausted map[*Account]bool
	for range maxRounds {
		victim, missing, err := attempt(exhausted)
		if victim == nil {
			return err
		}
		if victim.shed(missing) == 0 {
			if exhausted == nil {
				exhausted = map[*Account]bool{}
			}
			exhausted[victim] = true
		}
	}
	return ErrProcessLimit
}

// claim counts bytes for an account. When there is no room it counts nothing, and
// returns which account should shed how much, if any.
func (b *Budget) claim(a *Account, bytes int64, fixed bool, exhausted map[*Account]bool) (victim *Account, missing int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	payer := a.paidBy()
	if b.limits.PerService > 0 && payer.held+payer.fixed+bytes > b.limits.PerService {
		return nil, 0, ErrServiceLimit
	}
	missing = b.used + bytes - b.limits.Process
	if fixed {
		// As much has to be left for others.
		missing += payer.fixed + bytes
	}
	if missing <= 0 {
		if fixed {
			b.fix(a, bytes)
		} else {
			payer.held += bytes
			b.count(payer, bytes)
		}
		return nil, 0, nil
	}
	if victim = b.most(payer, bytes, exhausted); victim == nil {
		return nil, 0, ErrProcessLimit
	}
	return victim, missing, nil
}

// move makes what a branch takes that of another account. When there is no room it
// changes nothing, and returns which account should shed how much, if any.
func (b *Budget) move(branch, to *Account, exhausted map[*Account]bool) (victim *Account, missing int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	from, bytes := branch.payer, branch.fixed
	if from == to {
		return nil, 0, nil
	}
	if b.limits.PerService > 0 && to.held+to.fixed+bytes > b.limits.PerService {
		return nil, 0, ErrServiceLimit
	}
	// The bytes are used already. As many have to be left for others.
	if missing = b.used - b.limits.Process + to.fixed + bytes; missing > 0 {
		if victim = b.most(to, bytes, exhausted); victim == nil {
			return nil, 0, ErrProcessLimit
		}
		return victim, missing, nil
	}
	b.fix(branch, -bytes)
	branch.payer = to
	b.fix(branch, bytes)
	return nil, 0, nil
}

// fix changes what an account takes as fixed. Callers hold mu.
func (b *Budget) fix(a *Account, bytes int64) {
	payer := a.paidBy()
	payer.fixed += bytes
	if payer != a {
		a.fixed += bytes
	}
	b.count(payer, bytes)
}

// most returns the account that takes most of those that take more than another
// would, and have something to shed. Callers hold mu.
func (b *Budget) most(a *Account, bytes int64, exhausted map[*Account]bool) (victim *Account) {
	most := a.held + a.fixed + bytes
	for candidate := range b.accounts {
		if total := candidate.held + candidate.fixed; candidate != a && candidate.shed != nil &&
			candidate.held > 0 && total > most && !exhausted[candidate] {
			victim, most = candidate, total
		}
	}
	return victim
}

// Give counts bytes less as held.
func (a *Account) Give(bytes int64) {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	a.held -= bytes
	b.count(a, -bytes)
}

// count changes what is used by an account that was changed. Callers hold mu.
func (b *Budget) count(a *Account, bytes int64) {
	b.used += bytes
	if a.held == 0 && a.fixed == 0 {
		delete(b.accounts, a)
		return
	}
	b.accounts[a] = struct{}{}
}

// resize changes what an account takes as fixed.
func (a *Account) resize(bytes int64) error {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if bytes > 0 {
		payer := a.paidBy()
		fixed := payer.fixed + bytes
		switch {
		case b.limits.PerService > 0 && payer.held+fixed > b.limits.PerService:
			return ErrServiceLimit
		case fixed > b.limits.Process-b.used-bytes:
			return ErrProcessLimit
		}
	}
	b.fix(a, bytes)
	return nil
}

// Charge is what one connection takes of an account as fixed. Its zero value
// takes nothing and counts nowhere. It has one owner at a time.
type Charge struct {
	account *Account
	bytes   int64
}

// Charge returns a charge of no bytes.
func (a *Account) Charge() Charge { return Charge{account: a} }

// Resize makes the charge one of so many bytes. Only growing fails, with
// ErrProcessLimit or ErrServiceLimit, and then the charge stays what it was.
func (c *Charge) Resize(bytes int64) error {
	if c.account == nil || bytes == c.bytes {
		return nil
	}
	if err := c.account.resize(bytes - c.bytes); err != nil {
		return err
	}
	c.bytes = bytes
	return nil
}

// Claim is Resize, but when there is no room the accounts that take most are made
// to shed what they hold first, as with Account.Take. The caller must hold no lock
// that a shed function takes.
func (c *Charge) Claim(bytes int64) error {
	if c.account == nil || bytes <= c.bytes {
		return c.Resize(bytes)
	}
	if err := c.account.claim(bytes-c.bytes, true); err != nil {
		return err
	}
	c.bytes = bytes
	return nil
}

// Release makes the charge one of no bytes. It may be called again.
func (c *Charge) Release() {
	if c.account != nil && c.bytes != 0 {
		// Shrinking does not fail.
		_ = c.account.resize(-c.bytes)
	}
	c.bytes = 0
}
