//! A script call with its keys and arguments: inline where they are few, so that taking a lock needs no heap for them.

use leasehold_cluster::{OwnedCall, Script, ScriptCall};

use crate::state::id::Digits;

/// Keys of a call that need no heap.
const KEYS: usize = 4;
/// Arguments of a call that need no heap.
const ARGS: usize = 8;

/// A call under construction. All of its keys must be in one hash slot; the first one routes.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    script: &'static Script,
    keys: Short<Part<'a>, KEYS>,
    args: Short<Part<'a>, ARGS>,
    /// Keys that were made for this call.
    made: Vec<Box<[u8]>>,
}

/// One key or argument.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    Bytes(&'a [u8]),
    Number(Digits),
    /// The one with this index of those that were made for the call.
    Made(usize),
}

/// A finished call, in the form in which the client takes it.
#[derive(Debug)]
pub(crate) struct Slices<'a> {
    script: &'static Script,
    keys: Short<&'a [u8], KEYS>,
    args: Short<&'a [u8], ARGS>,
}

/// A list whose first `N` items need no heap.
#[derive(Debug)]
struct Short<T, const N: usize> {
    inline: [T; N],
    len: usize,
    /// All items, once there are more than `N`.
    heap: Vec<T>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(script: &'static Script) -> Self {
        Self {
            script,
            keys: Short::new(Part::Bytes(&[])),
            args: Short::new(Part::Bytes(&[])),
            made: Vec::new(),
        }
    }

    pub(crate) fn key(&mut self, key: impl Into<Part<'a>>) -> &mut Self {
        self.keys.push(key.into());
        self
    }

    pub(crate) fn arg(&mut self, arg: impl Into<Part<'a>>) -> &mut Self {
        self.args.push(arg.into());
        self
    }

    /// Adds a key that is made for this call.
    pub(crate) fn made_key(&mut self, key: impl Into<Vec<u8>>) -> &mut Self {
        self.made.push(key.into().into());
        self.key(Part::Made(self.made.len() - 1))
    }

    pub(crate) fn slices(&self) -> Slices<'_> {
        let mut slices = Slices {
            script: self.script,
            keys: Short::new(&[]),
            args: Short::new(&[]),
        };
        for key in self.keys.as_slice() {
            slices.keys.push(key.as_bytes(&self.made));
        }
        for arg in self.args.as_slice() {
            slices.args.push(arg.as_bytes(&self.made));
        }
        slices
    }

    /// The same call in a form that outlives what it was built from.
    pub(crate) fn to_owned(&self) -> OwnedCall {
        let owned = |parts: &[Part<'_>]| {
            let bytes = parts.iter().map(|part| part.as_bytes(&self.made).into());
            bytes.collect()
        };
        OwnedCall::new(
            self.script,
            owned(self.keys.as_slice()),
            owned(self.args.as_slice()),
        )
    }
}

impl Slices<'_> {
    pub(crate) fn call(&self) -> ScriptCall<'_> {
        self.script.call(self.keys.as_slice(), self.args.as_slice())
    }
}

impl Part<'_> {
    fn as_bytes<'s>(&'s self, made: &'s [Box<[u8]>]) -> &'s [u8] {
        match self {
            Part::Bytes(bytes) => bytes,
            Part::Number(digits) => digits.as_bytes(),
            Part::Made(index) => &made[*index],
        }
    }
}

impl<'a> From<&'a [u8]> for Part<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a str> for Part<'a> {
    fn from(text: &'a str) -> Self {
        Self::Bytes(text.as_bytes())
    }
}

impl From<u64> for Part<'_> {
    fn from(number: u64) -> Self {
        Self::Number(Digits::new(number))
    }
}

impl<T: Copy, const N: usize> Short<T, N> {
    /// An empty list; `filler` is never seen.
    const fn new(filler: T) -> Self {
        Self {
            inline: [filler; N],
            len: 0,
            heap: Vec::new(),
        }
    }

    fn push(&mut self, item: T) {
        if self.len < N {
            self.inline[self.len] = item;
        } else {
            if self.heap.is_empty() {
                self.heap.extend_from_slice(&self.inline);
            }
            self.heap.push(item);
        }
        self.len += 1;
    }

    fn as_slice(&self) -> &[T] {
        if self.len <= N {
            &self.inline[..self.len]
        } else {
            &self.heap
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_keep_their_order_beyond_the_inline_ones() {
        for len in 0..10 {
            let mut list: Short<usize, 4> = Short::new(99);
            (0..len).for_each(|item| list.push(item));
            let expected: Vec<usize> = (0..len).collect();
            assert_eq!(list.as_slice(), expected);
        }
    }
}
