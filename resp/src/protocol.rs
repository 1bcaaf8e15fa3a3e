//! The protocol without I/O: requests to bytes, bytes to values, and the classification of error replies.

pub mod classify;
pub mod command;
pub mod decode;
pub mod encode;
pub mod greeting;
pub mod push;
pub mod value;
