//! What a server says unasked: messages, and the confirmations of subscriptions.

use bytes::Bytes;

use crate::command::Encode;
use crate::encode;
use crate::value::Value;

/// A push that answers a (un)subscription, by its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// `subscribe`
    Subscribe,
    /// `unsubscribe`
    Unsubscribe,
    /// `ssubscribe`, of a sharded channel.
    Ssubscribe,
    /// `sunsubscribe`; arrives unasked when a slot moves away.
    Sunsubscribe,
}

/// A push, read.
#[derive(Clone, Debug, PartialEq)]
pub enum Push {
    /// A message on a channel, sharded or not.
    Message {
        /// The channel it was published on.
        channel: Bytes,
        /// What was published.
        payload: Bytes,
    },
    /// A confirmation that no command waits for: the server ended or began a subscription by itself.
    Unasked(Confirmation, Bytes),
    /// Anything else; nothing here depends on it.
    Other(Vec<Value>),
}

/// `SUBSCRIBE` and its relatives, for some channels.
#[derive(Clone, Debug)]
pub struct Subscribe {
    /// Which of them.
    pub kind: Confirmation,
    /// At least one channel; for the sharded kinds all of one slot.
    pub channels: Vec<Bytes>,
}

impl Push {
    /// Reads the elements of a push.
    #[must_use]
    pub fn parse(elements: Vec<Value>) -> Self {
        if let Some((kind, channel)) = confirmation(&elements) {
            return Self::Unasked(kind, channel.clone());
        }
        match elements.as_slice() {
            [Value::Bulk(kind) | Value::Simple(kind), Value::Bulk(channel), Value::Bulk(payload)]
                if **kind == *b"message" || **kind == *b"smessage" =>
            {
                Self::Message { channel: channel.clone(), payload: payload.clone() }
            }
            _ => Self::Other(elements),
        }
    }
}

impl Confirmation {
    const fn verb(self) -> &'static str {
        match self {
            Self::Subscribe => "SUBSCRIBE",
            Self::Unsubscribe => "UNSUBSCRIBE",
            Self::Ssubscribe => "SSUBSCRIBE",
            Self::Sunsubscribe => "SUNSUBSCRIBE",
        }
    }
}

impl Encode for Subscribe {
    fn encode(&self, out: &mut Vec<u8>) {
        encode::array(out, 1 + self.channels.len());
        encode::bulk(out, self.kind.verb().as_bytes());
        for channel in &self.channels {
            encode::bulk(out, channel);
        }
    }
}

/// The kind and the channel of `push`, if it is `[kind, channel, count]`.
pub(crate) fn confirmation(push: &[Value]) -> Option<(Confirmation, &Bytes)> {
    let [Value::Bulk(kind) | Value::Simple(kind), Value::Bulk(channel), Value::Integer(_)] = push else { return None };
    let kind = match &**kind {
        b"subscribe" => Confirmation::Subscribe,
        b"unsubscribe" => Confirmation::Unsubscribe,
        b"ssubscribe" => Confirmation::Ssubscribe,
        b"sunsubscribe" => Confirmation::Sunsubscribe,
        _ => return None,
    };
    Some((kind, channel))
}
