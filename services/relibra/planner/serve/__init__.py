"""The services that callers reach: who calls, what they may call, and the answers from the store."""
