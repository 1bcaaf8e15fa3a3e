//! Faults: crashes, stops, broken connections, failovers, clocks, slots that move.

use std::rc::Rc;

use super::call::Call;
use super::connection::{self, LinkKind, disconnect, notice_end};
use super::executor::{MS, SECOND};
use super::process::Process;
use super::release;
use super::server::Data;
use super::world::World;

const KINDS: [LinkKind; 3] = [LinkKind::Shared, LinkKind::Keeper, LinkKind::Exclusive];

/// Plans the next fault.
pub(super) fn plan(world: &Rc<World>) {
    let at = world.now() + world.random.between(20 * MS, 400 * MS);
    let world = Rc::clone(world);
    let executor = Rc::clone(&world);
    executor.executor.at(at, move || {
        if !world.quiet.get() {
            strike(&world);
            plan(&world);
        }
    });
}

/// From now on nothing goes wrong.
pub(super) fn heal(world: &Rc<World>) {
    world.say(|| "quiet".to_owned());
    world.quiet.set(true);
    world.server.borrow_mut().migrating = false;
}

fn strike(world: &Rc<World>) {
    let (profile, random) = (&world.profile, &world.random);
    let processes: Vec<Rc<Process>> = world.processes.borrow().clone();
    let victim = &processes[random.below(processes.len() as u64) as usize];
    let alive = processes.iter().filter(|process| process.alive.get());
    if random.chance(profile.crash) && alive.count() > 1 {
        crash(world, victim);
    }
    if random.chance(profile.stop) {
        let until = world.now() + random.between(10 * MS, 4_500 * MS);
        victim.stopped_until.set(until);
        world.say(|| format!("P{} stops until {until}", victim.index));
    }
    if random.chance(profile.disconnect) {
        let all = random.chance(500);
        for kind in KINDS {
            if all || random.chance(300) {
                disconnect(victim, kind);
            }
        }
    }
    // The clocks of two masters differ by less than the outage between them.
    let is_up = world.server.borrow().down_until <= world.now();
    if random.chance(profile.failover) && is_up {
        fail_over(world, &processes);
    }
    if random.chance(profile.server_steps) {
        step_server(world);
    }
    if random.chance(profile.wall_steps) {
        let step = random.between(0, 4 * SECOND).cast_signed() - 2_000_000;
        victim.wall_step.set(victim.wall_step.get() + step);
    }
    if random.chance(profile.migration) {
        let migrating = world.server.borrow().migrating;
        world.server.borrow_mut().migrating = !migrating;
        world.checks.borrow_mut().skips += 1;
        world.say(|| format!("migrating: {}", !migrating));
    }
    if random.chance(profile.shutdown) {
        let process = Rc::clone(victim);
        world.say(|| format!("P{} shuts down", victim.index));
        World::when_running(victim, move || release::shut_down(&process));
    }
    if random.chance(profile.block) {
        let until = world.now() + random.between(10 * MS, 4_500 * MS);
        victim.blocked_until.set(until);
        world.say(|| format!("P{} is blocked until {until}", victim.index));
    }
    if random.chance(profile.data_loss) {
        lose_data(world);
    }
    if random.chance(profile.forced) {
        connection::submit(victim, LinkKind::Shared, Call::ForceUnlock);
    }
}

fn crash(world: &Rc<World>, victim: &Rc<Process>) {
    if !victim.alive.replace(false) {
        return;
    }
    world.say(|| format!("P{} crashes", victim.index));
    for kind in KINDS {
        let link = victim.link(kind);
        if link.up.replace(false) {
            notice_end(world, link.session.get());
        }
    }
}

fn fail_over(world: &Rc<World>, processes: &[Rc<Process>]) {
    let random = &world.random;
    let (lost, outage) = (random.below(12), random.between(5 * MS, 400 * MS));
    world.say(|| format!("failover loses {lost}"));
    let skew = random.below(2 * outage).cast_signed() - outage.cast_signed();
    {
        let mut server = world.server.borrow_mut();
        server.fail_over(lost);
        server.down_until = world.now() + outage;
        server.oldest_session = world.number();
        if !world.profile.replicated {
            server.offset += skew;
        }
    }
    let mut checks = world.checks.borrow_mut();
    checks.skips += lost + 1;
    checks.excused |= !world.profile.replicated;
    drop(checks);
    for process in processes.iter().filter(|process| process.alive.get()) {
        for kind in KINDS {
            disconnect(process, kind);
        }
    }
}

fn lose_data(world: &Rc<World>) {
    let mut server = world.server.borrow_mut();
    let mut checks = world.checks.borrow_mut();
    checks.skips += server.data.line.len() as u64 + 1;
    if world.random.chance(500) {
        world.say(|| "the line is lost".to_owned());
        server.data.line.clear();
    } else {
        world.say(|| "all is lost".to_owned());
        server.data = Data::default();
        checks.excused = true;
    }
}

fn step_server(world: &Rc<World>) {
    let step = world.random.below(2 * SECOND).cast_signed() - 1_000_000;
    world.say(|| format!("the server's clock steps by {step}"));
    world.server.borrow_mut().offset += step;
    world.checks.borrow_mut().excused |= step > 0;
}
