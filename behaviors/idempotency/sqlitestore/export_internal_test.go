package sqlitestore

// PurgeSQL are the statements of a purge, whose plans a test looks at.
var PurgeSQL = []string{burySQL, removeSQL}
