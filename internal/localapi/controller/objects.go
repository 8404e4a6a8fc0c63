package controller

import (
	"errors"
	"fmt"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// Get reads an object; the zero value if it does not exist.
func Get[T kinds.Object](s Store, key store.Key) (T, error) {
	var none T
	item, err := s.Get(key)
	if errors.Is(err, store.ErrNotFound) {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	return Decode[T](item)
}

// Decode decodes a stored object. The error names it.
func Decode[T kinds.Object](item store.Item) (T, error) {
	var none T
	o, err := kinds.Decode(item.Value, item.Revision)
	if err != nil {
		return none, fmt.Errorf("%s: %w", item.Key, err)
	}
	typed, ok := o.(T)
	if !ok {
		return none, fmt.Errorf("%s: it is a %T", item.Key, o)
	}
	return typed, nil
}
