//! Out-of-band messages: published messages, and the confirmations of subscriptions.

use std::fmt;

use bytes::Bytes;

use crate::protocol::command::Encode;
use crate::protocol::encode;
use crate::protocol::value::Value;

/// A push that answers a (un)subscription, by its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// `subscribe`
    Subscribe,
    /// `unsubscribe`
    Unsubscribe,
    /// `ssubscribe`, of a sharded channel.
    Ssubscribe,
    /// `sunsubscribe`; also sent without a request when a slot moves away.
    Sunsubscribe,
}

/// A push, read.
#[derive(Clone, Debug, PartialEq)]
pub enum Push {
    /// A message on a channel, sharded or not.
    Message {
        /// The channel it was published on.
        channel: Bytes,
        /// The published bytes.
        payload: Bytes,
    },
    /// A confirmation that no command waits for: the server ended or began a subscription by itself.
    Unasked(Confirmation, Bytes),
    /// Anything else; nothing here depends on it.
    Other(Vec<Value>),
}

/// `SUBSCRIBE` and its relatives, for some channels.
#[derive(Clone)]
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
            [
                Value::Bulk(kind) | Value::Simple(kind),
                Value::Bulk(channel),
                Value::Bulk(payload),
            ] if **kind == *b"message" || **kind == *b"smessage" => Self::Message {
                channel: channel.clone(),
                payload: payload.clone(),
            },
            _ => Self::Other(elements),
        }
    }
}

impl Subscribe {
    /// The channels in the order in which they are asked for, each as often as it is: an answer for each of them.
    ///
    /// `SUNSUBSCRIBE` names its channels twice. A cluster node says `sunsubscribe` by itself when a slot moves away, which
    /// looks like a confirmation; if it then reads that we ended the subscription as well, it answers with an error. Of a
    /// channel that was named once it could not be told whether that error is still to come.
    #[must_use]
    pub fn confirmations(&self) -> Vec<Bytes> {
        self.asked().cloned().collect()
    }

    fn asked(&self) -> impl Iterator<Item = &Bytes> {
        let times = if self.kind == Confirmation::Sunsubscribe {
            2
        } else {
            1
        };
        self.channels
            .iter()
            .cycle()
            .take(self.channels.len() * times)
    }
}

/// The kind and how many channels, not their names.
impl fmt::Debug for Subscribe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscribe")
            .field("kind", &self.kind)
            .field("channels", &self.channels.len())
            .finish()
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
        encode::array(out, 1 + self.asked().count());
        encode::bulk(out, self.kind.verb().as_bytes());
        for channel in self.asked() {
            encode::bulk(out, channel);
        }
    }
}

/// The kind and the channel of `push`, if it is `[kind, channel, count]`.
pub(crate) fn confirmation(push: &[Value]) -> Option<(Confirmation, &Bytes)> {
    let [
        Value::Bulk(kind) | Value::Simple(kind),
        Value::Bulk(channel),
        Value::Integer(_),
    ] = push
    else {
        return None;
    };
    let kind = match &**kind {
        b"subscribe" => Confirmation::Subscribe,
        b"unsubscribe" => Confirmation::Unsubscribe,
        b"ssubscribe" => Confirmation::Ssubscribe,
        b"sunsubscribe" => Confirmation::Sunsubscribe,
        _ => return None,
    };
    Some((kind, channel))
}
