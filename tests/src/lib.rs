//! Real servers, a fault proxy and a history checker.
