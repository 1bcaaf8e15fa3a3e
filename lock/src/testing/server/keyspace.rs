//! The keys of an in-memory server, their values, and when they end.

use std::collections::{HashMap, VecDeque};

/// The keys, at one instant. The caller sets it before each command or script, which then sees time stand still, as on a server.
#[derive(Debug, Default)]
pub(super) struct Keyspace {
    keys: HashMap<Vec<u8>, Entry>,
    /// Microseconds since 1970.
    now: u64,
}

#[derive(Debug)]
struct Entry {
    value: Value,
    /// In milliseconds since 1970.
    expires: Option<u64>,
}

#[derive(Debug)]
pub(super) enum Value {
    Text(Vec<u8>),
    Hash(Hash),
    Sorted(Sorted),
    List(VecDeque<Vec<u8>>),
}

/// Fields in the order in which they came, as small hashes of a server are walked.
#[derive(Debug, Default)]
pub(super) struct Hash(pub(super) Vec<(Vec<u8>, Vec<u8>)>);

/// Members by score, then by their bytes.
#[derive(Debug, Default)]
pub(super) struct Sorted(pub(super) Vec<(f64, Vec<u8>)>);

/// The key holds a value of another type.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrongType;

impl Keyspace {
    pub(super) const fn set_time(&mut self, micros: u64) {
        self.now = micros;
    }

    /// In microseconds since 1970.
    pub(super) const fn micros(&self) -> u64 {
        self.now
    }

    pub(super) const fn millis(&self) -> u64 {
        self.now / 1000
    }

    pub(super) fn exists(&mut self, key: &[u8]) -> bool {
        self.get(key).is_some()
    }

    pub(super) fn get(&mut self, key: &[u8]) -> Option<&mut Value> {
        let now = self.millis();
        let is_over = |entry: &Entry| entry.expires.is_some_and(|at| now > at);
        if self.keys.get(key).is_some_and(is_over) {
            self.keys.remove(key);
        }
        self.keys.get_mut(key).map(|entry| &mut entry.value)
    }

    /// Removes the key; whether it was there.
    pub(super) fn remove(&mut self, key: &[u8]) -> bool {
        self.exists(key) && self.keys.remove(key).is_some()
    }

    /// Removes all keys of which `is_meant` says so.
    pub(super) fn remove_if(&mut self, is_meant: impl Fn(&[u8]) -> bool) {
        self.keys.retain(|key, _| !is_meant(key));
    }

    /// Puts `value` at the key. Its expiry goes, unless it is kept.
    pub(super) fn put(&mut self, key: &[u8], value: Value, keeps_expiry: bool) {
        let expires = match self.keys.get(key) {
            Some(known) if keeps_expiry => known.expires,
            _ => None,
        };
        self.keys.insert(key.to_vec(), Entry { value, expires });
    }

    /// When the key ends, in milliseconds from now; `None` if it is not there, `Some(None)` if it does not end.
    pub(super) fn left(&mut self, key: &[u8]) -> Option<Option<u64>> {
        self.get(key)?;
        let now = self.millis();
        let entry = self.keys.get(key)?;
        Some(entry.expires.map(|at| at.saturating_sub(now)))
    }

    /// The key ends in so many milliseconds; at once if that is none. Returns whether it is there.
    pub(super) fn expire(&mut self, key: &[u8], millis: i64) -> bool {
        if !self.exists(key) {
            return false;
        }
        let Some(millis) = u64::try_from(millis).ok().filter(|millis| *millis > 0) else {
            return self.keys.remove(key).is_some();
        };
        let at = self.millis() + millis;
        if let Some(entry) = self.keys.get_mut(key) {
            entry.expires = Some(at);
        }
        true
    }

    pub(super) fn text(&mut self, key: &[u8]) -> Result<Option<&mut Vec<u8>>, WrongType> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(WrongType),
        }
    }

    pub(super) fn hash(&mut self, key: &[u8]) -> Result<Option<&mut Hash>, WrongType> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Hash(hash)) => Ok(Some(hash)),
            Some(_) => Err(WrongType),
        }
    }

    pub(super) fn sorted(&mut self, key: &[u8]) -> Result<Option<&mut Sorted>, WrongType> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Sorted(sorted)) => Ok(Some(sorted)),
            Some(_) => Err(WrongType),
        }
    }

    pub(super) fn list(&mut self, key: &[u8]) -> Result<Option<&mut VecDeque<Vec<u8>>>, WrongType> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::List(list)) => Ok(Some(list)),
            Some(_) => Err(WrongType),
        }
    }

    /// Removes the key if there is nothing in its value any more: empty collections do not exist.
    pub(super) fn tidy(&mut self, key: &[u8]) {
        let is_empty = match self.get(key) {
            Some(Value::Hash(hash)) => hash.0.is_empty(),
            Some(Value::Sorted(sorted)) => sorted.0.is_empty(),
            Some(Value::List(list)) => list.is_empty(),
            Some(Value::Text(_)) | None => false,
        };
        if is_empty {
            self.keys.remove(key);
        }
    }
}

impl Hash {
    pub(super) fn get(&self, field: &[u8]) -> Option<&Vec<u8>> {
        let mut fields = self.0.iter();
        fields.find_map(|(known, value)| (known == field).then_some(value))
    }

    /// Sets the field; whether it is new.
    pub(super) fn set(&mut self, field: &[u8], value: &[u8]) -> bool {
        if let Some((_, known)) = self.0.iter_mut().find(|(known, _)| known == field) {
            *known = value.to_vec();
            return false;
        }
        self.0.push((field.to_vec(), value.to_vec()));
        true
    }

    pub(super) fn remove(&mut self, field: &[u8]) -> bool {
        let before = self.0.len();
        self.0.retain(|(known, _)| known != field);
        self.0.len() < before
    }
}

impl Sorted {
    pub(super) fn rank(&self, member: &[u8]) -> Option<usize> {
        self.0.iter().position(|(_, known)| known == member)
    }

    pub(super) fn score(&self, member: &[u8]) -> Option<f64> {
        self.rank(member).map(|at| self.0[at].0)
    }

    /// Adds the member, or moves it.
    pub(super) fn set(&mut self, member: &[u8], score: f64) {
        self.remove(member);
        let comes_before = |(known, other): &(f64, Vec<u8>)| {
            *known < score || *known == score && other.as_slice() < member
        };
        let at = self.0.partition_point(comes_before);
        self.0.insert(at, (score, member.to_vec()));
    }

    pub(super) fn remove(&mut self, member: &[u8]) -> bool {
        let Some(at) = self.rank(member) else {
            return false;
        };
        self.0.remove(at);
        true
    }
}
