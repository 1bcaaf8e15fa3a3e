//! A hold in one word: `lock` prints it, and `unlock` takes it.

use std::fmt;
use std::str::FromStr;

/// A hold: `<id>:<token>`, where the id is `<client>:<n>`. Shells need no quotes for it, and `${T##*:}` is the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HoldText {
    pub(crate) id: String,
    pub(crate) token: u64,
}

impl FromStr for HoldText {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text
            .rsplit_once(':')
            .filter(|(id, _)| id.contains(':'))
            .and_then(|(id, token)| Some((id, token.parse().ok()?)));
        let (id, token) = parts.ok_or("this is not what `leasehold lock` printed")?;
        Ok(Self {
            id: id.to_owned(),
            token,
        })
    }
}

impl fmt::Display for HoldText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.id, self.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_one_word() {
        let hold = HoldText {
            id: "6f1c2f3e-0000-4000-8000-000000000000:17".into(),
            token: 1_795_176_123_456_789,
        };
        assert_eq!(hold.to_string().parse(), Ok(hold));
        for bad in ["", ":", "a:1", "a:1:", "a:1:x", "a:1:-1"] {
            assert!(bad.parse::<HoldText>().is_err(), "{bad}");
        }
    }
}
