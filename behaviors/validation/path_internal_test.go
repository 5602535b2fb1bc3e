package validation

import (
	"reflect"
	"testing"
)

type pathBase struct{ Deep pathLeaf }

type pathLeaf struct {
	Leaf string `json:"leaf"`
}

type pathRoot struct {
	pathBase
	Named   pathBase `json:"named"`
	Hidden  string   `json:"-"`
	Bare    string
	Grid    [][]pathLeaf            `json:"grid"`
	ByKey   map[string][][]pathLeaf `json:"by_key"`
	Twice   map[string]map[int]int  `json:"twice"`
	Pointer **pathLeaf              `json:"pointer"`
	Any     any                     `json:"any"`
}

type pathGeneric[T any] struct {
	Item T `json:"item"`
}

func TestPathsOfAllShapes(t *testing.T) {
	t.Parallel()
	root := reflect.TypeFor[pathRoot]()
	for namespace, want := range map[string]string{
		"pathRoot.pathBase.Deep.Leaf":       "Deep.leaf",
		"pathRoot.Named.Deep.Leaf":          "named.Deep.leaf",
		"pathRoot.Hidden":                   "Hidden",
		"pathRoot.Bare":                     "Bare",
		"pathRoot.bare":                     "",
		"pathRoot.grid":                     "grid",
		"pathRoot.Grid[1][22].Leaf":         "grid[1][22].leaf",
		"pathRoot.Grid[1":                   "grid[*]",
		"pathRoot.Grid[4111x]":              "grid[*]",
		"pathRoot.ByKey[k]":                 "by_key[*]",
		"pathRoot.ByKey[k][0][1].Leaf":      "by_key[*][*][*].leaf",
		"pathRoot.ByKey[k][4111]":           "by_key[*][*]",
		"pathRoot.ByKey[k].Leaf":            "by_key[*]",
		"pathRoot.ByKey[k":                  "by_key[*]",
		"pathRoot.Twice[a][4111]":           "twice[*][*]",
		"pathRoot.Twice[]]][4111]":          "twice[*][*]",
		"pathRoot.Pointer.Leaf":             "pointer.leaf",
		"pathRoot.Pointer[4111]":            "pointer",
		"pathRoot.Any.Secret":               "any",
		"pathRoot.Any[4111]":                "any",
		"pathRoot.4111":                     "",
		"pathRoot.":                         "",
		"":                                  "",
		"4111":                              "",
		"pathRoot.Named.Deep.Leaf.4111.x[0": "named.Deep.leaf",
	} {
		if got, _ := pathOf(root, namespace); got != want {
			t.Errorf("%s: got %q, want %q", namespace, got, want)
		}
	}
	generic := reflect.TypeFor[pathGeneric[pathLeaf]]()
	if got, _ := pathOf(generic, generic.Name()+".Item.Leaf"); got != "item.leaf" {
		t.Errorf("got %q for a generic type", got)
	}
}

func TestTextsWhereLittleIsKnown(t *testing.T) {
	t.Parallel()
	if got := (&PanicError{Command: "c", Stage: "tags"}).Error(); got != "validation: c: panic in tags" {
		t.Errorf("got %q", got)
	}
	if got := message("eqfield", "Other", number, nil); got != "must be equal to Other" {
		t.Errorf("got %q", got)
	}
}
