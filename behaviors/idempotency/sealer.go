package idempotency

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
)

// Sealer encrypts what a record keeps of a result, for commands whose policy says [SealResult]. It is called while the handler's
// transaction is open, so it must be quick and must not call anybody; keys that live elsewhere are fetched before. It is safe for
// concurrent use. [NewSealer] makes one.
type Sealer interface {
	// Seal encrypts plain. context must be bound to it: it names the record, so that the result of one cannot be passed off as
	// another's. An error, or a panic, is treated like a result that cannot be encoded ([ResultError]).
	Seal(plain, context []byte) (sealed []byte, err error)
	// Open gives what was sealed under the same context, and an error for everything else. A replay then ends with a [*ResultError]
	// with Stored set, and the handler is not run.
	Open(sealed, context []byte) (plain []byte, err error)
}

// keyIDSize is how much of a key's name stands before what it has sealed, in bytes.
const keyIDSize = 8

// NewSealer makes a [Sealer] of AES-256-GCM with a random nonce. keys are of 32 random bytes each. The first one seals, and all of
// them open: what is sealed begins with 8 bytes that name its key and say nothing of it, so no key is tried in vain. It is 36
// bytes longer than the plain text.
//
// To change the key of a program that is deployed instance by instance, first give every instance the new key as the second one,
// then as the first, and take the old one away when the longest retention has passed since. A key that seals 2^32 results is worn
// out, because of the random nonces: change it long before.
func NewSealer(keys ...[]byte) (Sealer, error) {
	if len(keys) == 0 {
		return nil, errors.New("idempotency: NewSealer: no key is given")
	}
	s := make(sealer, len(keys))
	for i, key := range keys {
		if len(key) != 32 {
			return nil, fmt.Errorf("idempotency: NewSealer: key %d has %d bytes; a key is 32 random bytes", i+1, len(key))
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		if s[i].aead, err = cipher.NewGCMWithRandomNonce(block); err != nil {
			return nil, err
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte("tekil/sealer/key/1"))
		s[i].id = [keyIDSize]byte(mac.Sum(nil))
		for j := range i {
			if s[j].id == s[i].id {
				return nil, fmt.Errorf("idempotency: NewSealer: keys %d and %d are the same", j+1, i+1)
			}
		}
	}
	return s, nil
}

// sealer is the keys of a Sealer, the one that seals first.
type sealer []struct {
	id   [keyIDSize]byte
	aead cipher.AEAD
}

func (s sealer) Seal(plain, context []byte) ([]byte, error) {
	sealed := make([]byte, keyIDSize, keyIDSize+len(plain)+s[0].aead.Overhead())
	copy(sealed, s[0].id[:])
	return s[0].aead.Seal(sealed, nil, plain, context), nil
}

func (s sealer) Open(sealed, context []byte) ([]byte, error) {
	for _, key := range s {
		if bytes.HasPrefix(sealed, key.id[:]) {
			return key.aead.Open(nil, nil, sealed[keyIDSize:], context)
		}
	}
	return nil, errors.New("idempotency: what was sealed names none of the keys that are given")
}

// seal encrypts what the record of this attempt will hold.
func (d *dispatch) seal(plain []byte, resultType string) (sealed []byte, err error) {
	defer func() {
		if recover() != nil {
			sealed, err = nil, errors.New("the sealer panicked")
		}
	}()
	return d.cfg.Sealer.Seal(plain, sealContext(d.claim.ID, d.claim.Attempt, resultType))
}

// open decrypts what a record holds.
func (d *dispatch) open(sealed []byte, resultType string, rec *Record) (plain []byte, err error) {
	if d.cfg.Sealer == nil {
		return nil, errors.New("it is sealed and no sealer is set (Config.Sealer)")
	}
	defer func() {
		if recover() != nil {
			plain, err = nil, errors.New("the sealer panicked")
		}
	}()
	return d.cfg.Sealer.Open(sealed, sealContext(d.claim.ID, rec.Attempt, resultType))
}

// sealContext binds what is sealed to its record, to the attempt that wrote it, and so to the life of its key, and to what it is.
func sealContext(id ID, attempt AttemptID, resultType string) []byte {
	context := append([]byte("tekil/sealed/1"), id[:]...)
	context = append(context, attempt[:]...)
	return append(context, resultType...)
}
