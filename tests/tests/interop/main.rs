//! Our locks beside Redisson's, with a live one: the scenes of `make interop`.
//!
//! The Java half is in `interop/` and has to be built, so these tests run only on demand. Without a JDK each says so and passes.

mod counting;
mod failover;
mod fair;
mod faults;
mod faults_clock;
mod faults_holding;
mod faults_late;
mod faults_reading;
mod faults_servers;
mod faults_waking;
mod handing_over;
mod jvm;
mod latch;
mod leases;
mod monitor;
mod multi;
mod mutex;
mod permits;
mod pubsub;
mod red;
mod rw;
mod stage;
mod storm;
mod support;
mod traces;
