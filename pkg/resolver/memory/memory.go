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

// Package memory accounts for the bytes that the connections of clients use in a
// resolver, and limits them for the process and for each service.
//
// A service has an Account. The bytes of what waits for a pod are held. They can be
// shed, so that a service which holds less than another gets memory from the one
// that holds most. The bytes of an open connection, such as its goroutine, its
// buffers and the windows that it has granted, are fixed. They cannot be reclaimed,
// so a service may have at most as many as are still free: one service gets half of
// the limit, two get a third each, and there is always memory for another.
//
// It allocates nothing itself, and knows nothing of what the bytes are for. Begin with Budget.
package memory

import (
	"errors"
	"sync"
)

var (
	// ErrProcessLimit is returned when the limit of the process is reached and no
	// other service uses more than this one.
	ErrProcessLimit = errors.New("the resolver already holds as many bytes as its --max-held-bytes allows")
	// ErrServiceLimit is returned when the limit of a service is reached.
	ErrServiceLimit = errors.New("the service already holds as many bytes as --max-held-bytes-per-service allows")
	// ErrShed ends the wait of a waiter whose bytes were given to a service that
	// holds less.
	ErrShed = errors.New("the resolver needs the bytes for services that hold less, as it holds as many as its --max-held-bytes allows")
)

// IsLimit reports whether an error means that a limit is reached.
func IsLimit(err error) bool {
	return errors.Is(err, ErrProcessLimit) || errors.Is(err, ErrServiceLimit)
}

// Limits bound a Budget, in bytes.
type Limits struct {
	// Process bounds the bytes of all accounts.
	Process int64
	// PerService bounds the bytes of one account. 0: only Process does.
	PerService int64
}

// Budget is the memory that all services of a process share. It is safe for
// concurrent use.
type Budget struct {
	limits Limits

	mu   sync.Mutex
	used int64
	// accounts has the accounts that use any bytes.
	accounts map[*Account]struct{}
}

// NewBudget returns an unused budget.
func NewBudget(limits Limits) *Budget {
	return &Budget{limits: limits, accounts: map[*Account]struct{}{}}
}

// Used returns how many bytes are used.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Open returns an empty account. Shed is called to release at least a number of held
// bytes, newest first, and returns how many it released. It may be called from any
// goroutine that calls Take, without the lock of the budget. Nil: what the account
// holds is never shed.
func (b *Budget) Open(shed func(bytes int64) int64) *Account {
	return &Account{budget: b, shed: shed}
}

// Account counts what one service uses of a Budget. It is safe for concurrent use.
type Account struct {
	budget *Budget
	shed   func(bytes int64) int64

	// Guarded by the mutex of the budget.
	held, fixed int64
	// payer is the account that the bytes of this one are charged to. Nil: itself. Guarded
	// by the mutex of the budget.
	payer *Account
}

// Branch returns an account for a part of a: its bytes are charged to a, until Move
// charges all of them to another account at once. Its bytes are fixed; it must hold none.
func (a *Account) Branch() *Account { return &Account{budget: a.budget, payer: a} }

// Payer returns the account that the bytes of a are charged to, which is a itself unless
// a is a branch.
func (a *Account) Payer() *Account {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	return a.paidBy()
}

// paidBy is Payer. It must be called with the mutex of the budget held.
func (a *Account) paidBy() *Account {
	if a.payer != nil {
		return a.payer
	}
	return a
}

// Used returns how many bytes the account uses.
func (a *Account) Used() int64 {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	return a.held + a.fixed
}

// maxRounds bounds how often Take makes others shed before it fails: another account
// may take the released bytes first.
const maxRounds = 8

// Take counts bytes as held, until Give is called. When the limit is reached, the
// accounts that use most shed first, if they use more than this one. When it fails
// with ErrProcessLimit or ErrServiceLimit, nothing is counted. The caller must hold
// no lock that a shed function takes.
func (a *Account) Take(bytes int64) error { return a.claim(bytes, false) }

// claim counts bytes as held or as fixed, and makes others shed when the limit is
// reached.
func (a *Account) claim(bytes int64, fixed bool) error {
	return shedding(func(exhausted map[*Account]bool) (*Account, int64, error) {
		return a.budget.claim(a, bytes, fixed, exhausted)
	})
}

// Move charges the bytes of a branch, and those that it uses from now on, to another
// account. When the limit is reached, the accounts that use most shed first, as with
// Take. When it fails with ErrProcessLimit or ErrServiceLimit, nothing changes. The
// caller must hold no lock that a shed function takes.
func (a *Account) Move(to *Account) error {
	return shedding(func(exhausted map[*Account]bool) (*Account, int64, error) {
		return a.budget.move(a, to, exhausted)
	})
}

// shedding calls attempt until it succeeds, or no account can shed. attempt returns the
// account that should shed before the next one, if any, and how many bytes.
func shedding(attempt func(exhausted map[*Account]bool) (victim *Account, missing int64, err error)) error {
	// exhausted has the accounts with nothing left to shed.
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

// claim counts bytes for an account. When the limit is reached it counts nothing and
// returns the account that should shed, if any, and how many bytes.
func (b *Budget) claim(a *Account, bytes int64, fixed bool, exhausted map[*Account]bool) (victim *Account, missing int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	payer := a.paidBy()
	if b.limits.PerService > 0 && payer.held+payer.fixed+bytes > b.limits.PerService {
		return nil, 0, ErrServiceLimit
	}
	missing = b.used + bytes - b.limits.Process
	if fixed {
		// The same number of bytes must be left for other accounts.
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

// move charges the bytes of a branch to another account. When the limit is reached it
// changes nothing and returns the account that should shed, if any, and how many bytes.
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
	// The bytes are used already. As many must be left for other accounts.
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

// fix changes the fixed bytes of an account. It must be called with mu held.
func (b *Budget) fix(a *Account, bytes int64) {
	payer := a.paidBy()
	payer.fixed += bytes
	if payer != a {
		a.fixed += bytes
	}
	b.count(payer, bytes)
}

// most returns the account that uses most and can shed, if it uses more than another
// account would. It must be called with mu held.
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

// Give ends what Take has counted.
func (a *Account) Give(bytes int64) {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	a.held -= bytes
	b.count(a, -bytes)
}

// count updates the budget after a change of an account. It must be called with mu
// held.
func (b *Budget) count(a *Account, bytes int64) {
	b.used += bytes
	if a.held == 0 && a.fixed == 0 {
		delete(b.accounts, a)
		return
	}
	b.accounts[a] = struct{}{}
}

// resize changes the fixed bytes of an account.
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

// Charge has the fixed bytes of one connection. The bytes of its zero value are not
// counted. It is not safe for concurrent use.
type Charge struct {
	account *Account
	bytes   int64
}

// Charge returns a charge of no bytes.
func (a *Account) Charge() Charge { return Charge{account: a} }

// Resize sets the number of bytes of the charge. Only an increase can fail, with
// ErrProcessLimit or ErrServiceLimit, and leaves the charge unchanged.
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

// Claim is Resize, except that the accounts which use most shed first when the limit
// is reached, as with Account.Take. The caller must hold no lock that a shed function
// takes.
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

// Release sets the charge to no bytes. It may be called more than once.
func (c *Charge) Release() {
	if c.account != nil && c.bytes != 0 {
		// A decrease does not fail.
		_ = c.account.resize(-c.bytes)
	}
	c.bytes = 0
}
