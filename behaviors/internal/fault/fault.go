// Package fault tells the faults of the server from the refusals of callers, for the log and the telemetry alike.
package fault

// Is is true for the codes of what no caller can mend. A code that is not known here is a refusal of the application's.
func Is(code string) bool {
	switch code {
	case "INTERNAL", "DEADLINE_EXCEEDED", "UNHANDLED", "AROUND_FAULT",
		"VALIDATION_PANIC", "VALIDATION_TYPE",
		"IDEMPOTENCY_SCOPE_MISSING", "IDEMPOTENCY_FINGERPRINT_FAILED", "IDEMPOTENCY_STORE_UNAVAILABLE",
		"IDEMPOTENCY_RETRIES_EXHAUSTED", "IDEMPOTENCY_OUTCOME_UNKNOWN", "IDEMPOTENCY_HANDLER_FAULT",
		"IDEMPOTENCY_RECORD_MISMATCH", "IDEMPOTENCY_RESULT_UNDECODABLE", "IDEMPOTENCY_RESULT_UNENCODABLE",
		"IDEMPOTENCY_LEASE_LOST", "IDEMPOTENCY_ATTEMPTS_EXHAUSTED", "IDEMPOTENCY_RESULT_UNAVAILABLE":
		return true
	}
	return false
}
