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

package memory

import (
	"errors"
	"sync"
	"testing"
)

// holder is an account whose held bytes come in pieces of one byte.
type holder struct {
	*Account
	mu sync.Mutex
	// pieces is the number of pieces, shed the number of shed ones.
	pieces, shed int64
}

func newHolder(b *Budget) *holder {
	h := &holder{}
	h.Account = b.Open(func(bytes int64) int64 {
		h.mu.Lock()
		defer h.mu.Unlock()
		n := min(bytes, h.pieces)
		h.pieces -= n
		h.shed += n
		h.Give(n)
		return n
	})
	return h
}

func (h *holder) hold(bytes int64) error {
	if err := h.Take(bytes); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pieces += bytes
	return nil
}

func TestTheHeaviestIsShedAndTheOthersAreNot(t *testing.T) {
	b := NewBudget(Limits{Process: 100})
	flood, second, small := newHolder(b), newHolder(b), newHolder(b)
	for _, step := range []struct {
		of    *holder
		bytes int64
		want  error
	}{
		{flood, 70, nil},
		{second, 30, nil},
		// The account that holds most does not shed for itself.
		{flood, 1, ErrProcessLimit},
		{small, 20, nil},
		{flood, 1, ErrProcessLimit},
		// It uses less than the flood, and more than the small one.
		{second, 10, nil},
	} {
		if err := step.of.hold(step.bytes); !errors.Is(err, step.want) {
			t.Errorf("taking %d: %v, want %v", step.bytes, err, step.want)
		}
	}
	if flood.shed != 30 || second.shed != 0 || small.shed != 0 {
		t.Errorf("%d, %d and %d bytes were shed, want 30, 0 and 0", flood.shed, second.shed, small.shed)
	}
	if b.Used() != 100 || flood.Used() != 40 || second.Used() != 40 || small.Used() != 20 {
		t.Errorf("%d are used: %d, %d and %d", b.Used(), flood.Used(), second.Used(), small.Used())
	}
	// An account does not shed for one that uses as much.
	if err := second.hold(1); !errors.Is(err, ErrProcessLimit) {
		t.Errorf("taking from an equal: %v", err)
	}
}

// What the heaviest holds may be about to be forwarded.
func TestTheNextHeaviestShedsWhenTheHeaviestCannot(t *testing.T) {
	b := NewBudget(Limits{Process: 100})
	stuck := b.Open(func(int64) int64 { return 0 })
	if err := stuck.Take(60); err != nil {
		t.Fatal(err)
	}
	next, small := newHolder(b), newHolder(b)
	for _, step := range []struct {
		of    *holder
		bytes int64
	}{{next, 40}, {small, 10}} {
		if err := step.of.hold(step.bytes); err != nil {
			t.Errorf("taking %d: %v", step.bytes, err)
		}
	}
	if next.shed != 10 || stuck.Used() != 60 {
		t.Errorf("%d bytes were shed, and the heaviest uses %d", next.shed, stuck.Used())
	}
}

func TestServiceLimit(t *testing.T) {
	b := NewBudget(Limits{Process: 100, PerService: 50})
	h := newHolder(b)
	if err := h.hold(50); err != nil {
		t.Fatal(err)
	}
	if err := h.hold(1); !errors.Is(err, ErrServiceLimit) {
		t.Errorf("got %v", err)
	}
	charge := h.Charge()
	if err := charge.Resize(1); !errors.Is(err, ErrServiceLimit) {
		t.Errorf("got %v", err)
	}
	h.Give(50)
	if b.Used() != 0 || len(b.accounts) != 0 {
		t.Errorf("%d are used, %d accounts take something", b.Used(), len(b.accounts))
	}
}

// Fixed bytes leave memory for accounts that use none yet.
func TestFixedBytesLeaveRoomForOthers(t *testing.T) {
	b := NewBudget(Limits{Process: 120})
	fill := func(a *Account) (bytes int64) {
		for {
			charge := a.Charge()
			if charge.Resize(1) != nil {
				return bytes
			}
			bytes++
		}
	}
	first, second, third := b.Open(nil), b.Open(nil), b.Open(nil)
	if got := fill(first); got != 60 {
		t.Errorf("one alone takes %d of 120", got)
	}
	if got := fill(second); got != 30 {
		t.Errorf("the second takes %d of the 60 that are left", got)
	}
	charge := third.Charge()
	if err := charge.Resize(10); err != nil {
		t.Errorf("there is no room for a third: %v", err)
	}
	charge.Release()
	charge.Release()
	if got := third.Used(); got != 0 {
		t.Errorf("%d bytes are left of a charge that was released twice", got)
	}
}

// The accounts that hold most shed for the fixed bytes of a connection.
func TestFixedBytesAreClaimedFromTheHeaviest(t *testing.T) {
	b := NewBudget(Limits{Process: 100})
	flood := newHolder(b)
	if err := flood.hold(100); err != nil {
		t.Fatal(err)
	}
	charge := b.Open(nil).Charge()
	if err := charge.Resize(5); !errors.Is(err, ErrProcessLimit) {
		t.Errorf("growing without a claim: %v", err)
	}
	if err := charge.Claim(5); err != nil {
		t.Errorf("claiming 5 of 100 that another holds: %v", err)
	}
	// As many bytes stay free for others as are fixed.
	if flood.shed != 10 || b.Used() != 95 {
		t.Errorf("%d bytes were shed, %d are used", flood.shed, b.Used())
	}
	if err := charge.Claim(60); !errors.Is(err, ErrProcessLimit) {
		t.Errorf("claiming more than half: %v", err)
	}
	charge.Release()
}

func TestChargeThatCannotGrowStaysWhatItWas(t *testing.T) {
	b := NewBudget(Limits{Process: 100})
	charge := b.Open(nil).Charge()
	for _, step := range []struct {
		bytes int64
		want  error
		used  int64
	}{{40, nil, 40}, {51, ErrProcessLimit, 40}, {10, nil, 10}, {10, nil, 10}} {
		if err := charge.Resize(step.bytes); !errors.Is(err, step.want) || b.Used() != step.used {
			t.Errorf("resizing to %d: %v and %d used, want %v and %d", step.bytes, err, b.Used(), step.want, step.used)
		}
	}
	var nowhere Charge
	if err := nowhere.Resize(1 << 40); err != nil {
		t.Errorf("a charge that counts nowhere: %v", err)
	}
	nowhere.Release()
}

// Under concurrency the used bytes are those taken and not given back.
func TestManyAtOnce(t *testing.T) {
	b := NewBudget(Limits{Process: 1000, PerService: 600})
	holders := []*holder{newHolder(b), newHolder(b), newHolder(b), newHolder(b)}
	var running sync.WaitGroup
	for i, h := range holders {
		running.Go(func() {
			for range 2000 {
				_ = h.hold(int64(1 + i))
				charge := h.Charge()
				_ = charge.Resize(5)
				charge.Release()
			}
		})
	}
	running.Wait()
	var sum int64
	for _, h := range holders {
		if got := h.Used(); got != h.pieces {
			t.Errorf("%d are counted of %d", got, h.pieces)
		}
		sum += h.pieces
	}
	if b.Used() != sum || sum > 1000 {
		t.Errorf("%d are used of %d", b.Used(), sum)
	}
}

// What a branch takes counts for one account, and then all of it for another.
func TestBranchIsPaidForByOneAccountAtATime(t *testing.T) {
	b := NewBudget(Limits{Process: 120, PerService: 50})
	first, second := b.Open(nil), b.Open(nil)
	branch := first.Branch()
	one, other := branch.Charge(), branch.Charge()
	if err := errors.Join(one.Resize(10), other.Claim(20)); err != nil {
		t.Fatal(err)
	}
	counts := func(ofFirst, ofSecond int64) {
		t.Helper()
		if first.Used() != ofFirst || second.Used() != ofSecond || branch.Used() != 30 || b.Used() != 30 {
			t.Errorf("%d and %d bytes are counted, %d of the branch, %d of all", first.Used(), second.Used(), branch.Used(), b.Used())
		}
	}
	counts(30, 0)
	own := second.Charge()
	if err := own.Resize(21); err != nil {
		t.Fatal(err)
	}
	if err := branch.Move(second); !errors.Is(err, ErrServiceLimit) || branch.Payer() != first {
		t.Errorf("it has moved where there is no room: %v", err)
	}
	own.Release()
	if err := errors.Join(branch.Move(second), branch.Move(second)); err != nil || branch.Payer() != second {
		t.Errorf("it has not moved: %v", err)
	}
	counts(0, 30)
	if err := one.Resize(31); !errors.Is(err, ErrServiceLimit) {
		t.Errorf("growing over the limit of the payer: %v", err)
	}
	one.Release()
	other.Release()
	if b.Used() != 0 || len(b.accounts) != 0 {
		t.Errorf("%d are used, %d accounts take something", b.Used(), len(b.accounts))
	}
}

// A branch finds room where a connection would: at the expense of those that hold most.
func TestBranchMovesAtTheExpenseOfTheHeaviest(t *testing.T) {
	b := NewBudget(Limits{Process: 100})
	branch := b.Open(nil).Branch()
	charge := branch.Charge()
	if err := charge.Resize(10); err != nil {
		t.Fatal(err)
	}
	flood, to := newHolder(b), b.Open(nil)
	if err := flood.hold(90); err != nil {
		t.Fatal(err)
	}
	if err := branch.Move(to); err != nil || to.Used() != 10 {
		t.Errorf("%v, %d bytes have moved", err, to.Used())
	}
	// As much is left for others as is fixed.
	if flood.shed != 10 || b.Used() != 90 {
		t.Errorf("%d bytes were shed, %d are used", flood.shed, b.Used())
	}
}
