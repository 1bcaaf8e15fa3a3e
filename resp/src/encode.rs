//! Values to bytes: the parts a request is made of.

/// Appends the header of a request of `n` arguments.
pub fn array(out: &mut Vec<u8>, n: usize) {
    let _ = (out, n);
    todo!()
}

/// Appends one argument.
pub fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    let _ = (out, bytes);
    todo!()
}

/// Appends one argument, a decimal number.
pub fn int(out: &mut Vec<u8>, n: i64) {
    let _ = (out, n);
    todo!()
}
