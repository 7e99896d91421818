package steps

import (
	"reflect"
	"testing"
	"unsafe"
)

// A field that Again forgets is a control that the second plan does not have.
func TestAgainForgetsNothing(t *testing.T) {
	r := &Runner{}
	v := reflect.ValueOf(r).Elem()
	for i := range v.NumField() {
		f := v.Field(i)
		f = reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem()
		switch f.Kind() {
		case reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		case reflect.Map:
			f.Set(reflect.MakeMap(f.Type()))
			f.SetMapIndex(reflect.Zero(f.Type().Key()), reflect.Zero(f.Type().Elem()))
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		case reflect.Func:
			f.Set(reflect.MakeFunc(f.Type(), func([]reflect.Value) []reflect.Value { panic("not called") }))
		case reflect.String:
			f.SetString("x")
		case reflect.Int:
			f.SetInt(7)
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Interface, reflect.Struct: // of these below
		default:
			t.Fatalf("%s is of a kind that this test does not know", v.Type().Field(i).Name)
		}
	}
	got := reflect.ValueOf(r.Again()).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		switch k := v.Field(i).Kind(); {
		case name == "gotMu", name == "inlined", name == "told": // counts of one run: another plan has a report of its own
		case k == reflect.Interface:
			// An interface cannot be filled with anything: the source is looked at.
			continue
		case got.Field(i).IsZero():
			t.Errorf("%s is not taken along", name)
		}
	}
}
