package commit

// WithStep has f called between any two steps of a store.
func (o Options) WithStep(f func(string)) Options {
	o.step = f
	return o
}

// ComparePaths and what follows are for tests of their own.
var ComparePaths = comparePaths
