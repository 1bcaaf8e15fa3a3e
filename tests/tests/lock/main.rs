//! The locks.

mod acl_least_rights;
mod bad_input;
mod byte_cuts;
mod cancel_every_await;
mod cluster;
mod dependency_tree;
mod fork;
mod guard_life;
mod handing_over;
mod handing_over_faults;
mod handing_over_redisson;
mod idle_runtime;
mod inspect;
mod keeper_many;
mod keeper_renewal;
mod late_requests;
mod mutex_basics;
mod mutex_faults;
mod owner_hand_over;
mod owner_nesting;
mod pains_single;
mod partition;
mod replicated_mode;
mod restart_guard;
mod safe_mode_fresh_clients;
mod safe_mode_frozen_master;
mod safe_mode_members;
mod safe_mode_partition;
mod safe_mode_restart;
mod scripts;
mod scripts_line;
mod scripts_model;
mod scripts_mutex;
mod scripts_refusals;
mod shard;
mod slot_moves;
mod support;
#[cfg(feature = "tls")]
mod tls_cluster;
#[cfg(feature = "tls")]
mod tls_sentinel;
mod waiting_bounds;
mod waiting_fairness;
mod waiting_wakeups;
mod warnings;
