//! The recorded scenes of `interop/traces.json` with the Redisson that is installed: what it sends, and what its calls return.
//!
//! A newer Redisson that does something else is seen here first. Compared are the results of the calls, and all commands of a
//! scene with what its scripts run, without regard to their order: those of several clients, and of a timer, come in any. Of a
//! script that runs by a timer only that it ran. What keys hold is compared where a step says it.

mod commands;
mod golden;
mod ground;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_testkit::Fault;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use self::commands::{Commands, Names};
use self::golden::{Event, Golden, Scene, Step, differences, fits, timeless};
use self::ground::Ground;
use crate::jvm::{self, Client, Jvm, Pending, Thread};
use crate::support::ms;

/// Scenes at a time: most of their time they wait.
const AT_ONCE: usize = 4;

/// How often a scene that differs is played again.
const AGAIN: usize = 6;

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
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let play = |name: String| {
        let (jvm, golden, turns) = (Arc::clone(&jvm), Arc::clone(&golden), Arc::clone(&turns));
        tokio::task::spawn_local(async move {
            let _turn = turns.acquire().await;
            let scene = &golden.scenarios[&name];
            Play::new(&jvm, scene).await.run(&golden).await
        })
    };
    let names = golden.scenarios.keys();
    let tasks: Vec<_> = names.map(|name| (play(name.clone()), name)).collect();
    let played = tasks.len();
    let mut again = Vec::new();
    for (task, name) in tasks {
        if !task.await.is_ok_and(|found| found.is_empty()) {
            again.push(name.clone());
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

/// A scene that is played.
struct Play<'a> {
    scene: &'a Scene,
    ground: Ground,
    servers: Vec<Commands>,
    /// Those of clients that are apart, by the clients' names.
    processes: HashMap<String, Arc<Jvm>>,
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
            servers: Vec::new(),
            processes: HashMap::new(),
            clients: HashMap::new(),
            threads: HashMap::new(),
            names: Names::default(),
            pending: HashMap::new(),
            permits: HashMap::new(),
            expected: 0,
            found: Vec::new(),
        };
        if scene.from_the_start {
            this.watch().await;
        }
        this.connect(jvm).await;
        if !scene.from_the_start {
            this.watch().await;
        }
        this
    }

    async fn watch(&mut self) {
        let addresses: Vec<_> = self.ground.nodes().map(|n| n.addr.to_string()).collect();
        for node in self.ground.nodes() {
            let commands = Commands::watch(node, addresses.clone()).await;
            self.servers.push(commands);
        }
    }

    /// All clients, and their threads.
    async fn connect(&mut self, jvm: &Arc<Jvm>) {
        let scene = self.scene;
        for name in scene.clients() {
            let server = scene.servers.get(&name).copied().unwrap_or(0);
            let options = scene.options.get(&name).map_or("", String::as_str);
            let mut jvm = Arc::clone(jvm);
            if scene.apart.contains(&name) {
                jvm = jvm::another().expect("there is a JDK");
                self.processes.insert(name.clone(), Arc::clone(&jvm));
            }
            let options: Vec<_> = options.split_whitespace().collect();
            let client = jvm.client(&self.ground.url(server), &options).await;
            self.names.client(client.id(), &name);
            self.clients.insert(name, client);
        }
        for actor in scene.actors() {
            let (client, name) = actor.split_once('/').unwrap_or_default();
            let thread = self.clients[client].thread();
            self.names.thread(&thread.id().await, name);
            self.threads.insert(actor, thread);
        }
    }

    async fn run(mut self, golden: &Golden) -> Vec<String> {
        for step in &self.scene.steps {
            let before = self.seen(golden).len();
            self.step(step, golden).await;
            self.expected += timeless(&step.commands);
            let give_up = Instant::now() + STEP;
            while timeless(&self.seen(golden)) < self.expected && Instant::now() < give_up {
                sleep(ms(10)).await;
            }
            sleep(SETTLES).await;
            for call in &step.blocks {
                if !self.pending.get(call).is_some_and(Pending::is_blocked) {
                    self.found.push(format!("{call} has ended"));
                }
            }
            let sent = self.seen(golden).len() - before;
            if sent < step.at_least {
                let at_least = step.at_least;
                self.found
                    .push(format!("{sent} commands in a loop, not {at_least}"));
            }
            for (key, value) in self.ground.values(step.state.keys()).await {
                let value: Vec<_> = value.split(' ').map(|w| self.names.applied(w)).collect();
                let (value, expected) = (value.join(" "), &step.state[&key]);
                if value != *expected {
                    self.found
                        .push(format!("{key} holds {value:?}, not {expected:?}"));
                }
            }
        }
        self.found
            .extend(differences(self.scene, &self.seen(golden)));
        for (_, client) in self.clients {
            client.end();
        }
        self.found
    }

    async fn step(&mut self, step: &Step, golden: &Golden) {
        match &step.event {
            None => self.call(step).await,
            Some(Event::Pass(time)) => sleep(ms(*time)).await,
            Some(Event::ByHand(command)) => self.ground.by_hand(command).await,
            Some(Event::Again(script)) => {
                let hash = &golden.scripts[script];
                let last = self.servers.iter().find_map(|server| server.last(hash));
                let reply = self.ground.again(&last.expect("it was sent")).await;
                self.compare(script, step.gives.as_deref().unwrap_or("null"), &reply);
            }
            Some(Event::Kill(client)) => self.processes[client].kill(),
            Some(Event::Pause(client)) => self.processes[client].freeze(),
            Some(Event::Resume(client)) => self.processes[client].thaw(),
            Some(Event::Freeze(server)) => self.ground.freeze(*server),
            Some(Event::Move(key)) => self.ground.move_slot(key).await,
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
        let whole = self.scene.from_the_start;
        let of = |server: &Commands| server.so_far(&self.names, &golden.scripts, whole);
        self.servers.iter().flat_map(of).collect()
    }

    async fn call(&mut self, step: &Step) {
        let (by, call) = (&step.by, &step.call);
        let thread = &self.threads[by];
        if call == "Thread.interrupt()" {
            thread.begin("interrupt").answer().await.ok();
            return;
        }
        let call_here = self.translated(call);
        let pending = if let Some(time) = step.late {
            let proxy = self.ground.proxy(name_in(call)).await;
            proxy.to_client(Fault::Stall);
            let pending = thread.begin(call_here);
            sleep(ms(time)).await;
            proxy.to_client(Fault::None);
            pending
        } else {
            thread.begin(call_here)
        };
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

/// The name of the object in `kind(name).method(arguments)`.
fn name_in(call: &str) -> &str {
    let name = call.split_once('(').map_or("", |(_, rest)| rest);
    name.split_once(").").map_or(name, |(name, _)| name)
}
