package validation

import (
	"reflect"
	"slices"
	"time"
)

// sampleOf makes a value of the type t that is nowhere zero, as far as that can be done: one element in each list, "a" in
// each string. Where a type contains itself, the inner one is left zero.
func sampleOf(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	fill(v, nil)
	return v
}

// fill fills v. within are the structs round it.
func fill(v reflect.Value, within []reflect.Type) {
	switch t := v.Type(); t.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		v.SetUint(1)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(1)
	case reflect.Complex64, reflect.Complex128:
		v.SetComplex(1)
	case reflect.String:
		v.SetString("a")
	case reflect.Pointer:
		if !recurs(t.Elem(), within) {
			v.Set(reflect.New(t.Elem()))
			fill(v.Elem(), within)
		}
	case reflect.Slice:
		if !recurs(t.Elem(), within) {
			v.Set(reflect.MakeSlice(t, 1, 1))
			fill(v.Index(0), within)
		}
	case reflect.Array:
		if v.Len() > 0 {
			fill(v.Index(0), within)
		}
	case reflect.Map:
		if t.Key().Kind() != reflect.Interface && !recurs(t.Elem(), within) {
			key, elem := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
			fill(key, within)
			fill(elem, within)
			v.Set(reflect.MakeMap(t))
			v.SetMapIndex(key, elem)
		}
	case reflect.Struct:
		if isTime(t) {
			if v.CanSet() {
				v.Set(reflect.ValueOf(time.Unix(1, 0)).Convert(t))
			}
			return
		}
		within = append(slices.Clone(within), t)
		for i := range t.NumField() {
			if f := v.Field(i); f.CanSet() || t.Field(i).Anonymous && f.Kind() == reflect.Struct {
				fill(f, within)
			}
		}
	}
}

// recurs reports whether t leads back into one of the structs in within, or is too deep to be worth it.
func recurs(t reflect.Type, within []reflect.Type) bool {
	for slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map}, t.Kind()) {
		t = t.Elem()
	}
	return slices.Contains(within, t) || len(within) > 8
}
