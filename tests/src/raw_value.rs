//! Replies of the raw client, with accessors that name the unexpected reply.

/// A reply. Sets are arrays here, big numbers simple strings, verbatim strings bulks without their
/// format.
#[derive(Debug, Clone, PartialEq)]
pub enum RawValue {
    /// `+OK`
    Simple(String),
    /// `-CODE text`, without the dash.
    Error(String),
    /// `:1`
    Int(i64),
    /// `$…`
    Bulk(Vec<u8>),
    /// `_`, `$-1` or `*-1`
    Null,
    /// `*…` or `~…`
    Array(Vec<Self>),
    /// `%…`, in the server's order.
    Map(Vec<(Self, Self)>),
    /// `>…`
    Push(Vec<Self>),
    /// `,1.5`
    Double(f64),
    /// `#t` or `#f`
    Bool(bool),
}

impl RawValue {
    /// The number, also when it came as a string.
    ///
    /// # Panics
    ///
    /// When it is none.
    #[must_use]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(n) => *n,
            other => other
                .text()
                .and_then(|t| t.parse().ok())
                .unwrap_or_else(|| panic!("expected a number: {self:?}")),
        }
    }

    /// The text of a simple or bulk string.
    ///
    /// # Panics
    ///
    /// When it is none.
    #[must_use]
    pub fn str(&self) -> &str {
        self.text()
            .unwrap_or_else(|| panic!("expected a string: {self:?}"))
    }

    /// The elements of an array, a set or a push.
    ///
    /// # Panics
    ///
    /// When it is none.
    #[must_use]
    pub fn array(&self) -> &[Self] {
        match self {
            Self::Array(items) | Self::Push(items) => items,
            other => panic!("expected an array: {other:?}"),
        }
    }

    /// The value beside `key`, in a RESP3 map or in the flat array RESP2 has instead.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(pairs) => pairs
                .iter()
                .find(|(k, _)| k.text() == Some(key))
                .map(|(_, v)| v),
            Self::Array(items) => items
                .chunks_exact(2)
                .find(|kv| kv[0].text() == Some(key))
                .map(|kv| &kv[1]),
            _ => None,
        }
    }

    /// Whether it is a null of any kind.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Whether it is the simple string `OK`.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Simple(text) if text == "OK")
    }

    /// The error line, if it is one.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Error(line) => Some(line),
            _ => None,
        }
    }

    /// Whether it is an error that ends by itself: of a server that starts, joins or fails over.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        const CODES: [&str; 5] = [
            "CLUSTERDOWN",
            "LOADING",
            "MASTERDOWN",
            "NOREPLICAS",
            "TRYAGAIN",
        ];
        // A source that migrates a key passes the code on within its own line.
        self.error()
            .is_some_and(|line| CODES.iter().any(|code| line.contains(code)))
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Simple(text) => Some(text),
            Self::Bulk(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }
}
