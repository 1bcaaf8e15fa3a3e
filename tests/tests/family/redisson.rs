//! The scenarios that were recorded of live Redisson clients, played again with this library in place of one of them.
//!
//! The others send the commands that were recorded of them, and each reply is compared; so are the keys after each step, and the
//! messages that the others hear. Times, ids and tokens vary.

mod java;
mod ours;
mod recording;
mod scripts;
mod servers;
mod state;
mod tables;
mod take;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use leasehold::{Interop, Locks, Redlock};
use leasehold_testkit::{Proxy, Raw};
use tokio::task::{JoinSet, LocalSet, spawn_local};

use crate::support::until;
use java::{Java, now};
use ours::{Call, Ours};
use recording::{Command, Scenario, Step, scenarios};
use servers::Servers;
use state::{Names, compare};
use tables::{AVOIDED, MORE_MESSAGES, NOBODY, OTHER_KEYS, Steps, THEIRS, is_played, lease, parts};

/// Scenarios that are played at a time.
const AT_ONCE: usize = 4;

struct Replay<'a> {
    title: String,
    /// The client whose part is ours, and those of the same program.
    clients: &'a [&'a str],
    java: Java,
    names: Names<'a>,
    ours: Ours,
    proxy: Proxy,
    /// Connections to each server that was recorded; of a cluster, to all of its masters.
    eyes: Vec<(String, Vec<Raw>)>,
    steps: &'a [Step],
}

impl Replay<'_> {
    async fn step(&mut self, at: usize, step: &Step) {
        let when = format!(
            "{}, {} as ours, step {at}: {}",
            self.title, self.clients[0], step.call
        );
        let call = Call::parse(&step.call);
        if let Some(call) = &call {
            self.ours.note(call, &step.result);
        }
        let is_ours = step.client() == Some(self.clients[0]);
        let is_theirs = self.is_in(THEIRS, at);
        let mut pending = call
            .clone()
            .filter(|call| is_ours && call.has_counterpart() && !is_theirs);
        let plays_all = is_theirs || is_ours && pending.is_none();
        if is_ours && step.call == "Thread.interrupt()" {
            self.ours.interrupt(&step.by);
        }
        let removes = |call: &Call| call.method == "forceUnlock" && step.result == "true";
        let removed = match call.as_ref().filter(|call| removes(call)) {
            Some(call) => self.ours.take_out(&call.name),
            None => Vec::new(),
        };
        if let Some(seconds) = step.call.strip_suffix(" s pass") {
            // As far as leases end in it.
            let seconds: f64 = seconds.parse().unwrap_or_default();
            tokio::time::sleep(Duration::from_secs_f64(seconds.min(0.6))).await;
        }
        self.by_hand(&step.call, &when).await;
        let mut returned: Vec<_> = step.returned_now.iter().collect();
        let own = format!("{}/", self.clients[0]);
        returned.retain(|(call, _)| call.starts_with(&own) && !is_theirs);
        let mut commands = step.commands.iter().peekable();
        while let Some(command) = commands.peek() {
            if self.is_ours(&command.from) && !plays_all {
                if let Some(call) = pending.take() {
                    self.ours.call(&step.by, &call, &step.result, &when).await;
                }
                if command.takes() && !returned.is_empty() && !is_ours {
                    let (call, result) = returned.remove(0);
                    self.returned(call, result, &when).await;
                }
                commands.next();
                continue;
            }
            let mut batch: Vec<&Command> = Vec::new();
            while let Some(command) =
                commands.next_if(|command| plays_all || !self.is_ours(&command.from))
            {
                batch.push(command);
            }
            self.java.run(&batch, &when).await;
        }
        if let Some(call) = pending {
            self.ours.call(&step.by, &call, &step.result, &when).await;
        }
        for (call, result) in returned {
            self.returned(call, result, &when).await;
        }
        self.returned_there(at, step, &when).await;
        self.ours.have_lost(removed, &when).await;
        self.compare(at, step, &when).await;
    }

    /// Calls of others that returned in this step, of whose many commands none was recorded that took what they wait for.
    async fn returned_there(&mut self, at: usize, step: &Step, when: &str) {
        for (call, result) in &step.returned_now {
            let (client, name) = call.split_once('/').expect("a client and its thread");
            let of = |command: &&Command| command.from == client;
            let has_it = *result == "null" || *result == "true";
            if !has_it
                || self.is_ours(client)
                || step.commands.iter().filter(of).any(Command::takes)
            {
                continue;
            }
            let call = name.split_once(' ').and_then(|(_, call)| Call::parse(call));
            let script = call.map_or(String::new(), |call| format!("{}.acquire", call.kind));
            let earlier = self.steps[..=at].iter().flat_map(|step| &step.commands);
            let earlier = earlier.filter(of);
            let mut asked = earlier.filter(|command| command.script.as_ref() == Some(&script));
            if let Some(asked) = asked.next_back() {
                self.java.take_later(asked, when).await;
            }
        }
    }

    fn is_ours(&self, client: &str) -> bool {
        self.clients.contains(&client)
    }

    async fn returned(&mut self, call: &str, result: &serde_json::Value, when: &str) {
        let call = call.split_once(' ').expect("a thread and a call").1;
        let call = Call::parse(call).expect("a call");
        self.ours.returned(&call, result, when).await;
    }

    /// Keys and messages are the recorded ones.
    async fn compare(&mut self, at: usize, step: &Step, when: &str) {
        let differ = self.is_in(OTHER_KEYS, at) || self.is_in(THEIRS, at);
        if !differ && let Some(state) = &step.state {
            for (server, eyes) in &mut self.eyes {
                let mut first = None;
                until(&format!("{when}: the keys of {server:?}"), async || {
                    let now = now(&mut eyes[0]).await;
                    let expected = self.names.expected(state, server, now);
                    let found = self.names.found(eyes).await;
                    compare(&found, &expected).map_err(|why| {
                        let first = first.get_or_insert_with(|| why.clone());
                        format!("at first {first}, at last {why}")
                    })
                })
                .await;
            }
        }
        let mut heard = self.java.heard().await;
        heard.retain(|message| !self.clients.iter().any(|own| message.starts_with(own)));
        let expected = self.messages(step);
        if self.is_in(MORE_MESSAGES, at) {
            assert_ne!(heard, expected, "{when}: no more messages");
        } else {
            assert_eq!(heard, expected, "{when}: the messages");
        }
    }

    /// Whether a table has this step of the part.
    fn is_in(&self, table: &[Steps<'_>], at: usize) -> bool {
        let mut table = table.iter();
        table.any(|(of, who, steps)| {
            *of == self.title && *who == self.clients[0] && steps.contains(&at)
        })
    }

    /// What Redisson's clients hear in a step.
    fn messages(&self, step: &Step) -> Vec<String> {
        let mut heard = Vec::new();
        for message in &step.messages {
            let (message, clients) = message.split_once(" => ").expect("who heard it");
            let (channel, payload) = message.split_once(" <- ").expect("what it says");
            let channel = channel.split_once(' ').expect("its kind").1;
            for client in clients.split(',').filter(|client| !self.is_ours(client)) {
                heard.push(format!("{client} {channel} {payload}"));
            }
        }
        heard.sort();
        heard
    }
}

impl Replay<'_> {
    /// What the recorder did itself.
    async fn by_hand(&mut self, call: &str, when: &str) {
        let channel = "redisson_lock__channel:{L}";
        let commands: &[&[&str]] = match call {
            "key set by hand without TTL" => &[&["HSET", "L", "other", "1"]],
            "foreign release: DEL" | "DEL by hand" => &[&["DEL", "L"]],
            "PUBLISH 0" => &[&["PUBLISH", channel, "0"]],
            "PUBLISH 5 (unknown value)" => &[&["PUBLISH", channel, "5"]],
            "PUBLISH x (not a number)" => &[&["PUBLISH", channel, "x"]],
            "hold of A removed by hand" => &[&["DEL", "A"]],
            "DEL zset" => &[&["DEL", "redisson_lock_timeout:{F}"]],
            "PERSIST" => &[&["PERSIST", "N"]],
            "E5 set by hand with a time to live" => &[&["SET", "E5", "2", "PX", "60000"]],
            _ if call.starts_with("process of C2") => {
                self.java.forget("C2");
                if self.is_ours("C2") {
                    self.proxy.blackhole();
                }
                &[]
            }
            _ => &[],
        };
        for command in commands {
            let raw = self.java.raw("");
            let reply = raw.cmd(command).await;
            assert!(reply.error().is_none(), "{call}: {reply:?}");
            if command[0] == "DEL" {
                let removed = self.ours.take_out(command[1]);
                self.ours.have_lost(removed, when).await;
            }
        }
    }
}

/// Plays a scenario with `client` as ours.
async fn play(name: &str, scenario: &Scenario, client: &str) {
    let servers = Servers::start(scenario).await;
    if !servers.have_channels_of(scenario).await {
        // No test is skipped, only this part of one.
        println!("not played, since the server has no sharded channels: {name}, {client}");
        return;
    }
    let mut steps = scenario.steps.clone();
    for command in steps.iter_mut().flat_map(|step| &mut step.commands) {
        servers.find(command).await;
    }
    let own = |command: &&Command| command.from == client;
    let commands = || scenario.steps.iter().flat_map(|step| &step.commands);
    let server = commands().find(own).map_or("", |own| &own.server);
    let proxy = Proxy::start(servers.addr(scenario, server));
    // The parts of Redisson's lock of several servers are clients of one program.
    let clients = match (name, client) {
        ("red", "C1") => vec!["C1", "C2", "C3"],
        _ => vec![client],
    };
    let args = commands().filter(own).flat_map(|command| &command.argv);
    let permits = args.filter_map(|arg| arg.strip_prefix("<16 bytes "));
    let permits = permits.map(|permit| permit.trim_end_matches('>').to_owned());
    let mut replay = Replay {
        title: name.into(),
        clients: &clients,
        java: redissons_half(&servers, scenario).await,
        names: Names {
            clients: &clients,
            permits: permits.collect(),
        },
        ours: our_half(name, client, &servers, &proxy).await,
        proxy,
        eyes: servers.eyes(scenario).await,
        steps: &steps,
    };
    for (at, step) in steps.iter().enumerate() {
        if replay.is_in(AVOIDED, at) {
            break;
        }
        replay.step(at, step).await;
    }
    // What is left is given back before the servers end, and not to those that come after them.
    replay.proxy.heal();
    replay.ours.end().await;
}

async fn redissons_half(servers: &Servers, scenario: &Scenario) -> Java {
    let mut java = Java::new(servers.raw(scenario).await);
    for client in ["C1", "C2", "C3", "C4", "C5"] {
        for (server, ear) in servers.raw(scenario).await {
            java.add_ear(client, &server, ear).await;
        }
    }
    java
}

async fn our_half(name: &str, client: &str, servers: &Servers, proxy: &Proxy) -> Ours {
    let lease = lease(name, client);
    let url = match servers {
        Servers::Cluster(_) => servers.urls().remove(0),
        Servers::Single(_) => proxy.url(),
    };
    let locks = Locks::builder(url).interop(Interop::Redisson).lease(lease);
    let mut red = None;
    if name == "red" {
        let builder = Redlock::builder(servers.urls()).interop(Interop::Redisson);
        red = Some(builder.durable().lease(lease).connect().await.unwrap());
    }
    Ours::new(locks.connect().await.unwrap(), red)
}

#[tokio::test]
async fn recorded_clients_of_redisson_find_what_they_found_with_us_as_one_of_them() {
    let scenarios = scenarios();
    assert_eq!(scenarios.len(), 38);
    let parts = parts(&scenarios);
    assert_eq!(parts.len(), 64);
    LocalSet::new().run_until(play_all(scenarios, parts)).await;
}

/// What plays Redisson here is what was recorded.
#[tokio::test]
async fn recorded_clients_of_redisson_find_what_they_found_without_us() {
    let scenarios = scenarios();
    let names = scenarios.keys().filter(|name| is_played(name));
    let parts = names
        .map(|name| (name.clone(), NOBODY.to_owned()))
        .collect();
    LocalSet::new().run_until(play_all(scenarios, parts)).await;
}

async fn play_all(scenarios: BTreeMap<String, Scenario>, parts: Vec<(String, String)>) {
    let scenarios = Rc::new(scenarios);
    let all = parts.len();
    let failed = play_at_once(&scenarios, parts).await;
    // Some of the recorded leases end within a second, which a busy machine may need for a step: alone they are played again.
    let mut failed_alone = Vec::new();
    for part in failed {
        failed_alone.extend(play_at_once(&scenarios, vec![part]).await);
    }
    assert!(
        failed_alone.is_empty(),
        "{} of {all} parts failed twice, as told above: {failed_alone:?}",
        failed_alone.len()
    );
}

/// Plays parts, and returns those that differ from the recording.
async fn play_at_once(
    scenarios: &Rc<BTreeMap<String, Scenario>>,
    parts: Vec<(String, String)>,
) -> Vec<(String, String)> {
    let mut parts = parts.into_iter();
    let mut running = JoinSet::new();
    let mut failed = Vec::new();
    loop {
        while running.len() < AT_ONCE
            && let Some((name, client)) = parts.next()
        {
            let scenarios = Rc::clone(scenarios);
            running.spawn_local(async move {
                let part = (name.clone(), client.clone());
                let played = spawn_local(async move {
                    play(&name, &scenarios[&name], &client).await;
                });
                (part, played.await.is_ok())
            });
        }
        match running.join_next().await {
            Some(played) => {
                let (part, is_same) = played.expect("the outcome of a part");
                failed.extend((!is_same).then_some(part));
            }
            None => return failed,
        }
    }
}
