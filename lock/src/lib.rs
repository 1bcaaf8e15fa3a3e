//! Lease-based distributed locks on Redis and Valkey.
