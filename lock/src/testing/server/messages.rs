//! Publish and subscribe, and what each connection has to read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::task::Waker;

use super::reply::Reply;

/// The connections, and the channels that they listen to.
#[derive(Debug, Default)]
pub(super) struct Messages {
    sessions: HashMap<u64, Inbox>,
    /// Connections by channel, in the order of their numbers.
    channels: BTreeMap<Channel, BTreeSet<u64>>,
    /// To be woken outside of the mutex.
    wakers: Vec<Waker>,
    /// Whether connections wait for the server to come back.
    is_stopped: bool,
}

/// A name, and whether it is one of `SSUBSCRIBE`.
type Channel = (bool, Vec<u8>);

/// Messages that a connection has not read yet.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// Whether it has said `HELLO 3`.
    pub(super) is_resp3: bool,
    pub(super) bytes: Vec<u8>,
    pub(super) waker: Option<Waker>,
}

impl Messages {
    pub(super) fn open(&mut self, session: u64) {
        self.sessions.entry(session).or_default();
    }

    pub(super) fn close(&mut self, session: u64) {
        self.sessions.remove(&session);
        self.channels.retain(|_, listeners| {
            listeners.remove(&session);
            !listeners.is_empty()
        });
    }

    /// Ends all connections; later ones have to wait.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
        self.channels.clear();
        let ended = std::mem::take(&mut self.sessions);
        let wakers = ended.into_values().filter_map(|inbox| inbox.waker);
        self.wakers.extend(wakers);
    }

    /// Serves those who wait.
    pub(super) fn start(&mut self) {
        self.is_stopped = false;
        let waiting = self.sessions.values_mut();
        self.wakers
            .extend(waiting.filter_map(|inbox| inbox.waker.take()));
    }

    pub(super) const fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    pub(super) fn inbox(&mut self, session: u64) -> Option<&mut Inbox> {
        self.sessions.get_mut(&session)
    }

    /// Whether everything was read.
    pub(super) fn is_read(&self) -> bool {
        self.sessions.values().all(|inbox| inbox.bytes.is_empty())
    }

    /// Sends replies or messages to a connection.
    pub(super) fn send(&mut self, session: u64, reply: &Reply) {
        if let Some(inbox) = self.sessions.get_mut(&session) {
            reply.write(&mut inbox.bytes, inbox.is_resp3);
            self.wakers.extend(inbox.waker.take());
        }
    }

    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakers)
    }

    /// Sends the message to all who listen; how many they are.
    pub(super) fn publish(&mut self, is_sharded: bool, channel: &[u8], message: &[u8]) -> i64 {
        let listeners = self.channels.get(&(is_sharded, channel.to_vec()));
        let listeners = listeners.cloned().unwrap_or_default();
        let message = Reply::Push(vec![
            Reply::text(if is_sharded { "smessage" } else { "message" }),
            Reply::text(channel),
            Reply::text(message),
        ]);
        for listener in &listeners {
            self.send(*listener, &message);
        }
        listeners.len() as i64
    }

    /// `PUBSUB NUMSUB` and `PUBSUB SHARDNUMSUB`.
    pub(super) fn listeners(&self, is_sharded: bool, channels: &[Vec<u8>]) -> Reply {
        let listeners = |channel: &Vec<u8>| {
            let known = self.channels.get(&(is_sharded, channel.clone()));
            let count = known.map_or(0, BTreeSet::len);
            [Reply::text(channel.clone()), Reply::Int(count as i64)]
        };
        Reply::Array(channels.iter().flat_map(listeners).collect())
    }

    /// `SUBSCRIBE` and `UNSUBSCRIBE`: a confirmation for each channel.
    pub(super) fn subscription(&mut self, session: u64, args: &[Vec<u8>]) -> Vec<Reply> {
        let [name, channels @ ..] = args else {
            return Vec::new();
        };
        let name = name.to_ascii_lowercase();
        let subscribes = matches!(name.as_slice(), b"subscribe" | b"ssubscribe");
        let is_sharded = matches!(name.as_slice(), b"ssubscribe" | b"sunsubscribe");
        let mut replies = Vec::new();
        for channel in channels {
            let listeners = self
                .channels
                .entry((is_sharded, channel.clone()))
                .or_default();
            if subscribes {
                listeners.insert(session);
            } else {
                listeners.remove(&session);
            }
            if listeners.is_empty() {
                self.channels.remove(&(is_sharded, channel.clone()));
            }
            let is_mine = |listeners: &&BTreeSet<u64>| listeners.contains(&session);
            let of_kind = self
                .channels
                .iter()
                .filter(|((kind, _), _)| *kind == is_sharded);
            let mine = of_kind
                .map(|(_, listeners)| listeners)
                .filter(is_mine)
                .count();
            replies.push(Reply::Push(vec![
                Reply::text(name.clone()),
                Reply::text(channel.clone()),
                Reply::Int(mine as i64),
            ]));
        }
        replies
    }
}
