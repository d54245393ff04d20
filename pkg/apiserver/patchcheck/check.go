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

package patchcheck

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// maxProblems bounds how many problems one response lists.
	maxProblems = 20
	// maxShownBytes is the length up to which a value is part of a response.
	maxShownBytes = 64
)

// checker collects what is wrong with a value.
type checker struct {
	problems field.ErrorList
}

// check compares a decoded JSON value, whose numbers are json.Number, with the
// type that it will be decoded into. Unknown members, missing members and null are
// left to the decoder.
func (c *checker) check(value any, t reflect.Type, path *field.Path) {
	if value == nil || len(c.problems) >= maxProblems {
		return
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		c.checkUnmarshaler(value, t, path)
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		c.checkStruct(value, t, path)
	case reflect.Map:
		members, ok := value.(map[string]any)
		if !ok {
			c.add(path, value, "must be an object")
			return
		}
		for name, member := range members {
			if !isDirective(name) {
				c.check(member, t.Elem(), path.Key(name))
			}
		}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			c.checkKind(value, reflect.String, path)
			return
		}
		elements, ok := value.([]any)
		if !ok {
			c.add(path, value, "must be a list")
			return
		}
		for i, element := range elements {
			c.check(element, t.Elem(), path.Index(i))
		}
	case reflect.Interface:
	default:
		c.checkKind(value, t.Kind(), path)
	}
}

func (c *checker) checkStruct(value any, t reflect.Type, path *field.Path) {
	members, ok := value.(map[string]any)
	if !ok {
		c.add(path, value, "must be an object")
		return
	}
	for name, member := range members {
		if found, ok := memberOf(t, name); ok && !isDirective(name) {
			c.check(member, found, child(path, name))
		}
	}
}

func (c *checker) checkUnmarshaler(value any, t reflect.Type, path *field.Path) {
	encoded, err := json.Marshal(value)
	if err != nil {
		return
	}
	if err := json.Unmarshal(encoded, reflect.New(t).Interface()); err != nil {
		c.add(path, value, err.Error())
	}
}

// checkKind compares a value with a kind that has no members.
func (c *checker) checkKind(value any, kind reflect.Kind, path *field.Path) {
	number, isNumber := value.(json.Number)
	switch kind {
	case reflect.String:
		if _, ok := value.(string); !ok {
			c.add(path, value, "must be a string")
		}
	case reflect.Bool:
		if _, ok := value.(bool); !ok {
			c.add(path, value, "must be true or false")
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if !isNumber {
			c.add(path, value, "must be an integer")
		} else if _, err := strconv.ParseInt(number.String(), 10, bits(kind)); err != nil {
			c.add(path, value, "must be an integer of "+strconv.Itoa(bits(kind))+" bits")
		}
	case reflect.Float32, reflect.Float64:
		if !isNumber {
			c.add(path, value, "must be a number")
		}
	}
}

// add adds a problem. The value is part of it unless it is long.
func (c *checker) add(path *field.Path, value any, detail string) {
	if len(c.problems) >= maxProblems {
		return
	}
	switch shown := value.(type) {
	case string:
		if len(shown) > maxShownBytes {
			value = field.OmitValueType{}
		}
	case json.Number:
		value = field.OmitValueType{}
		if len(shown) <= maxShownBytes {
			value = shown.String()
		}
	case bool:
	default:
		value = field.OmitValueType{}
	}
	c.problems = append(c.problems, field.TypeInvalid(path, value, detail))
}

// bits is the size of an integer of a kind.
func bits(kind reflect.Kind) int {
	switch kind {
	case reflect.Int8:
		return 8
	case reflect.Int16:
		return 16
	case reflect.Int32:
		return 32
	default:
		return 64
	}
}

// memberOf returns the type of the field of a struct that has a JSON name.
func memberOf(t reflect.Type, name string) (reflect.Type, bool) {
	for i := range t.NumField() {
		candidate := t.Field(i)
		tag, _, _ := strings.Cut(candidate.Tag.Get("json"), ",")
		switch {
		case tag == "" && candidate.Anonymous && candidate.Type.Kind() == reflect.Struct:
			if found, ok := memberOf(candidate.Type, name); ok {
				return found, true
			}
		case tag != "" && tag != "-" && tag == name:
			return candidate.Type, true
		}
	}
	return nil, false
}

// isDirective reports whether a member of a strategic merge patch says how to
// merge instead of what.
func isDirective(name string) bool { return strings.HasPrefix(name, "$") }

func child(path *field.Path, name string) *field.Path {
	if path == nil {
		return field.NewPath(name)
	}
	return path.Child(name)
}

// decode returns a JSON value with its numbers as they are written.
func decode(encoded []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.UseNumber()
	var value any
	err := decoder.Decode(&value)
	return value, err
}

// operation is one operation of a JSON patch.
type operation struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value"`
}

// checkOperations compares the values of a JSON patch with the types of the
// places that they are put in.
func (c *checker) checkOperations(operations []operation, t reflect.Type) {
	for _, operation := range operations {
		if operation.Op != "add" && operation.Op != "replace" {
			continue
		}
		place, path, ok := resolve(t, operation.Path)
		value, err := decode(operation.Value)
		if ok && err == nil {
			c.check(value, place, path)
		}
	}
}

// resolve follows a JSON pointer through a type.
func resolve(t reflect.Type, pointer string) (reflect.Type, *field.Path, bool) {
	var path *field.Path
	segments := strings.Split(pointer, "/")
	if segments[0] != "" || len(segments) < 2 {
		return nil, nil, false
	}
	for _, segment := range segments[1:] {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
			return nil, nil, false
		}
		segment = strings.NewReplacer("~1", "/", "~0", "~").Replace(segment)
		switch t.Kind() {
		case reflect.Struct:
			member, ok := memberOf(t, segment)
			if !ok {
				return nil, nil, false
			}
			t, path = member, child(path, segment)
		case reflect.Map:
			t, path = t.Elem(), path.Key(segment)
		case reflect.Slice:
			t = t.Elem()
			if index, err := strconv.Atoi(segment); err == nil {
				path = path.Index(index)
			} else {
				path = path.Key(segment)
			}
		default:
			return nil, nil, false
		}
	}
	return t, path, true
}
