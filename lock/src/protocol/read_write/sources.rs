//! The texts of the read-write lock's scripts, put together from their steps; those that other primitives take too are in
//! `steps`. A file of its own, so that the tests that talk to a server without the library run the same texts.

/// The text of a script: its steps, then the script itself.
macro_rules! script {
    ($($file:literal),+) => { concat!($(include_str!($file)),+) };
}

pub(crate) const ASK_READ: &str = script!(
    "ask_read.lua",
    "../steps/time.lua",
    "../steps/token.lua",
    "../steps/holders.lua",
    "../steps/join.lua",
    "enter.lua",
    "settle.lua",
    "serve.lua",
    "notify.lua",
    "still_held.lua",
    "ask.lua"
);
pub(crate) const ASK_WRITE: &str = script!(
    "ask_write.lua",
    "../steps/time.lua",
    "../steps/token.lua",
    "write_now.lua",
    "../steps/holders.lua",
    "../steps/join.lua",
    "enter.lua",
    "settle.lua",
    "serve.lua",
    "notify.lua",
    "still_held.lua",
    "ask.lua"
);
pub(crate) const ASK_ALONE: &str = script!("../steps/holders.lua", "ask_alone.lua");
pub(crate) const CONFIRM: &str = script!(
    "confirm.lua",
    "enter.lua",
    "still_held.lua",
    "confirm_rest.lua"
);
pub(crate) const CONFIRM_ALONE: &str = script!("confirm_alone.lua");
pub(crate) const RELEASE: &str = script!(
    "release.lua",
    "release_state.lua",
    "../steps/time.lua",
    "../steps/token.lua",
    "enter.lua",
    "settle.lua",
    "serve.lua",
    "release_rest.lua"
);
pub(crate) const RELEASE_ALONE: &str = script!("release_alone.lua");
pub(crate) const RENEW_READ: &str = script!("renewing.lua", "renew_read.lua");
pub(crate) const RENEW_READ_REPLICATED: &str = script!("renewing_always.lua", "renew_read.lua");
pub(crate) const RENEW_WRITE: &str = script!("renewing.lua", "renew_write.lua");
pub(crate) const RENEW_WRITE_REPLICATED: &str = script!("renewing_always.lua", "renew_write.lua");
pub(crate) const RENEW_FIELD: &str = script!("renew_field.lua");
pub(crate) const RENEW_TIMEOUT: &str = script!("renew_timeout.lua");
pub(crate) const DOWNGRADE: &str = script!(
    "downgrade.lua",
    "../steps/time.lua",
    "../steps/token.lua",
    "enter.lua",
    "settle.lua",
    "serve.lua",
    "still_held.lua",
    "downgrade_rest.lua"
);
pub(crate) const UPGRADE: &str = script!(
    "upgrade.lua",
    "../steps/time.lua",
    "../steps/token.lua",
    "enter.lua",
    "settle.lua",
    "still_held.lua",
    "upgrade_rest.lua"
);
pub(crate) const TAKE_OVER: &str = script!(
    "take_over.lua",
    "../steps/time.lua",
    "../steps/token.lua",
    "enter.lua",
    "still_held.lua",
    "take_over_rest.lua"
);
pub(crate) const INSPECT: &str = script!("../steps/holders.lua", "inspect.lua");
pub(crate) const REMAINING: &str = script!("../steps/holders.lua", "remaining.lua");
pub(crate) const FORCE_UNLOCK: &str = script!(
    "../steps/only_holders.lua",
    "force_unlock.lua",
    "../steps/time.lua",
    "../steps/token.lua",
    "enter.lua",
    "settle.lua",
    "serve.lua",
    "force_unlock_rest.lua"
);
