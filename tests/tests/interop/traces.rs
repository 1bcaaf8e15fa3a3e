//! The recorded scenes of `interop/traces.json` with the Redisson that is installed: what it sends, and what its calls return.
//!
//! A newer Redisson that does something else is seen here first. Compared are the results of the calls, and all commands of a
//! scene with what its scripts run, without regard to their order: those of several clients, and of a timer, come in any. Of a
//! script that runs by a timer only that it ran.

mod golden;
mod monitor;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_testkit::{Cluster, Raw, Server};
use tokio::time::sleep;

use self::golden::{Golden, Scene, Step, differences, fits, timeless};
use self::monitor::{Monitor, Names};
use crate::jvm::{self, Client, Jvm, Pending, Thread};
use crate::support::ms;

/// Scenes at a time: most of their time they wait.
const AT_ONCE: usize = 4;

/// How often a scene that differs is played again.
const AGAIN: usize = 2;

/// After the commands that were recorded of a step, others that are not expected have this long to come.
const SETTLES: Duration = ms(60);

/// The commands of a step are through by then, also on a busy machine.
const STEP: Duration = ms(3_000);

#[tokio::test]
async fn recorded_scenes_come_out_again() {
    if let Some(jvm) = jvm::shared() {
        tokio::task::LocalSet::new().run_until(play_all(jvm)).await;
    }
}

async fn play_all(jvm: Arc<Jvm>) {
    let golden = Arc::new(Golden::load());
    let mut scenes: Vec<String> = golden.scenarios.keys().cloned().collect();
    let played = scenes.len();
    let play = |name: String| {
        let (jvm, golden) = (Arc::clone(&jvm), Arc::clone(&golden));
        tokio::task::spawn_local(async move {
            let scene = &golden.scenarios[&name];
            Play::new(&jvm, scene).await.run(&golden).await
        })
    };
    let mut again = Vec::new();
    while !scenes.is_empty() {
        let batch = scenes.split_off(scenes.len().saturating_sub(AT_ONCE));
        let tasks: Vec<_> = batch
            .into_iter()
            .map(|name| (play(name.clone()), name))
            .collect();
        for (task, name) in tasks {
            if !task.await.is_ok_and(|found| found.is_empty()) {
                again.push(name);
            }
        }
    }
    // Its clients race each other on a busy machine. What it does otherwise it does each time.
    let mut failures = Vec::new();
    for name in again {
        println!("{name} once more, alone");
        let mut found = Err("it did not come to its end".to_owned());
        for _ in 0..AGAIN {
            if let Ok(differences) = play(name.clone()).await {
                let is_same = differences.is_empty();
                found = Ok(differences);
                if is_same {
                    break;
                }
            }
        }
        let found = found.unwrap_or_else(|failure| vec![failure]);
        failures.extend(found.into_iter().map(|found| format!("{name}: {found}")));
    }
    println!("{played} recorded scenes, {} differences", failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Where a scene plays.
enum Ground {
    Servers(Vec<Server>),
    Cluster(Cluster),
}

/// A scene that is played.
struct Play<'a> {
    scene: &'a Scene,
    ground: Ground,
    monitors: Vec<Monitor>,
    clients: HashMap<String, Client>,
    threads: HashMap<String, Thread>,
    names: Names,
    /// Calls that block, by thread and call.
    pending: HashMap<String, Pending>,
    /// Ids of permits, by their names in the recording.
    permits: HashMap<String, String>,
    /// How many commands were recorded of the steps so far.
    expected: usize,
    found: Vec<String>,
}

impl<'a> Play<'a> {
    async fn new(jvm: &Arc<Jvm>, scene: &'a Scene) -> Self {
        let ground = Ground::new(scene).await;
        let mut this = Self {
            scene,
            ground,
            monitors: Vec::new(),
            clients: HashMap::new(),
            threads: HashMap::new(),
            names: Names::default(),
            pending: HashMap::new(),
            permits: HashMap::new(),
            expected: 0,
            found: Vec::new(),
        };
        for name in scene.clients() {
            let url = this
                .ground
                .url(scene.servers.get(&name).copied().unwrap_or(0));
            let options: Vec<_> = scene
                .options
                .get(&name)
                .map(String::as_str)
                .into_iter()
                .collect();
            let client = jvm.client(&url, &options).await;
            this.names.client(client.id(), &name);
            this.clients.insert(name, client);
        }
        for actor in scene.actors() {
            let client = &this.clients[actor.split('/').next().unwrap_or_default()];
            let thread = client.thread();
            let id = thread.id().await;
            this.names
                .thread(&id, actor.split('/').nth(1).unwrap_or_default());
            this.threads.insert(actor, thread);
        }
        for addr in this.ground.addresses() {
            this.monitors.push(Monitor::start(addr).await);
        }
        this
    }

    async fn run(mut self, golden: &Golden) -> Vec<String> {
        for step in &self.scene.steps {
            self.step(step).await;
            self.expected += timeless(&step.commands);
            let give_up = Instant::now() + STEP;
            while timeless(&self.seen(golden)) < self.expected && Instant::now() < give_up {
                sleep(ms(10)).await;
            }
            sleep(SETTLES).await;
        }
        let seen = self.seen(golden);
        let expected = self.scene.steps.iter().flat_map(|step| &step.commands);
        self.found.extend(differences(expected, &seen));
        for (_, client) in self.clients {
            client.end();
        }
        self.found
    }

    async fn step(&mut self, step: &Step) {
        if let Some(time) = step.pass {
            sleep(ms(time)).await;
        } else if let Some(command) = &step.by_hand {
            self.ground.by_hand(command).await;
        } else {
            self.call(step).await;
        }
        for (call, expected) in &step.ends {
            let Some(pending) = self.pending.remove(call) else {
                self.found.push(format!("{call} does not block"));
                continue;
            };
            let result = pending.answer().await.result;
            self.compare(call, expected, &result);
        }
    }

    /// The commands so far.
    fn seen(&self, golden: &Golden) -> Vec<String> {
        let of = |monitor: &Monitor| monitor.commands(&self.names, &golden.scripts);
        self.monitors.iter().flat_map(of).collect()
    }

    async fn call(&mut self, step: &Step) {
        let (by, call) = (&step.by, &step.call);
        let thread = &self.threads[by];
        if call == "Thread.interrupt()" {
            thread.begin("interrupt").answer().await.ok();
            return;
        }
        let pending = thread.begin(self.translated(call));
        let whole = format!("{by} {call}");
        if step.gives.as_deref() == Some("(blocked)") {
            self.pending.insert(whole, pending);
            return;
        }
        let result = pending.answer().await.result;
        self.compare(&whole, step.gives.as_deref().unwrap_or("null"), &result);
    }

    /// With the names that clients and permits have here.
    fn translated(&self, call: &str) -> String {
        let mut call = call.to_owned();
        for (name, client) in &self.clients {
            call = call.replace(
                &format!("{name}/lock/"),
                &format!("{}/lock/", client.name()),
            );
        }
        // The longest first: P10 begins with P1.
        let mut permits: Vec<_> = self.permits.iter().collect();
        permits.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        for (name, id) in permits {
            if let Some((object, arguments)) = call.rsplit_once(").") {
                call = format!("{object}).{}", arguments.replace(name, id));
            }
        }
        call
    }

    fn compare(&mut self, call: &str, expected: &str, result: &str) {
        let ids = expected.trim_matches(['[', ']']).split(", ");
        if ids.clone().all(golden::is_permit) {
            let given = result.trim_matches(['[', ']']).split(", ");
            let named = ids.map(str::to_owned).zip(given.map(str::to_owned));
            self.permits.extend(named);
            return;
        }
        let short = match result.split_once(':') {
            Some((thrown, _)) if thrown.starts_with("throws ") => thrown,
            _ => result,
        };
        if !fits(expected, short) {
            self.found
                .push(format!("{call} gives {result}, not {expected}"));
        }
    }
}

impl Ground {
    async fn new(scene: &Scene) -> Self {
        if scene.cluster {
            return Self::Cluster(Cluster::builder().masters(3).replicas(0).start().await);
        }
        let mut servers = Vec::new();
        for _ in 0..=scene.servers.values().copied().max().unwrap_or(0) {
            servers.push(Server::start().await);
        }
        Self::Servers(servers)
    }

    fn url(&self, server: usize) -> String {
        match self {
            Self::Servers(servers) => servers[server].url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    fn addresses(&self) -> Vec<std::net::SocketAddr> {
        match self {
            Self::Servers(servers) => servers.iter().map(Server::addr).collect(),
            Self::Cluster(cluster) => (0..cluster.len()).map(|node| cluster.addr(node)).collect(),
        }
    }

    /// Runs a command that is none of Redisson's: in a script, which monitors leave out.
    async fn by_hand(&self, command: &[String]) {
        let Self::Servers(servers) = self else {
            panic!("nothing is done by hand in a cluster");
        };
        let mut raw: Raw = servers[0].raw().await;
        let run = ["EVAL", "return redis.call(unpack(ARGV))", "0"].map(str::to_owned);
        let reply = raw.cmd(&[&run[..], command].concat()).await;
        assert!(reply.error().is_none(), "{reply:?}");
    }
}
