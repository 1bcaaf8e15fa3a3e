//! Looking at the locks of a server: what stands there, by commands that change nothing and a budget of them a second.

pub(crate) mod glob;
pub(crate) mod node;
pub(crate) mod pace;
pub(crate) mod permits;
pub(crate) mod processes;
pub(crate) mod replies;
pub(crate) mod seen;
pub(crate) mod shape;
pub(crate) mod survey;
pub(crate) mod text;
pub(crate) mod view;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold::Locks;
use leasehold_cluster::{Client, Target};
use leasehold_resp::{Command, Error, ErrorKind, ServerErrorKind};

use serde::Serialize;

use crate::args::Global;
use crate::commands::Context;
use crate::connect;
use crate::exit::{DENIED, Failure, UNAVAILABLE};
use pace::Pace;
use processes::Processes;
use survey::{Survey, Wanted};

/// Commands a second that a look may send, if nothing else is said.
pub(crate) const BUDGET: u32 = 10_000;

/// The arguments of all commands that look at many keys.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Commands a second that may be sent to the servers.
    #[arg(long, value_name = "N", default_value_t = BUDGET, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) budget: u32,
}

/// Servers to look at.
#[derive(Clone, Debug)]
pub(crate) struct Looker {
    pub(crate) client: Client,
    pub(crate) target: Target,
    pub(crate) pace: Arc<Pace>,
    namespace: Option<String>,
}

impl Looker {
    pub(crate) async fn connect(global: &Global, budget: u32) -> Result<Self, Failure> {
        let target = target(global)?;
        let client = Client::connect(target.clone())
            .await
            .map_err(|error| failure(&error))?;
        Ok(Self {
            client,
            target,
            pace: Arc::new(Pace::new(budget)),
            namespace: global.namespace.clone(),
        })
    }

    /// The library's locks. Their names are whole keys.
    pub(crate) async fn locks(&self, global: &Global) -> Result<Locks, Failure> {
        Ok(connect::of_keys(global)?.connect().await?)
    }

    /// The key of a name, as it stands on the server. What a table shows of odd bytes can be given back.
    pub(crate) fn key(&self, name: &str) -> Result<Vec<u8>, Failure> {
        let name = text::unescaped(name)
            .ok_or_else(|| Failure::usage(format!("`{name}`: a backslash is written as \\\\")))?;
        if name.is_empty() {
            return Err(Failure::usage("the key is empty"));
        }
        Ok(self.prefixed(&name))
    }

    /// The server's pattern for all keys that match `pattern`; `None` for all.
    pub(crate) fn pattern(&self, pattern: Option<&str>) -> Option<Vec<u8>> {
        match (pattern, &self.namespace) {
            (None, None) => None,
            (pattern, _) => Some(self.prefixed(pattern.unwrap_or("*").as_bytes())),
        }
    }

    /// All locks whose keys match, and the processes that may hold them.
    pub(crate) async fn survey(&self, wanted: &Wanted) -> (Survey, Processes) {
        tokio::join!(
            survey::survey(&self.client, &self.pace, wanted),
            Processes::read(&self.client, &self.pace)
        )
    }

    /// The type of a key, as `TYPE` has it.
    pub(crate) async fn type_of(&self, key: &[u8]) -> Result<String, Failure> {
        let answer = self.client.call(key, &Command::new("TYPE").arg(key)).await;
        let answer = answer.map_err(|error| failure(&error))?;
        Ok(replies::text(&answer).unwrap_or_default())
    }

    /// The clock of the server of a key, which all times there are of.
    pub(crate) async fn server_time(&self, key: &[u8]) -> Option<SystemTime> {
        let answer = self.client.call(key, &Command::new("TIME")).await.ok()?;
        Some(SystemTime::UNIX_EPOCH + Duration::from_micros(replies::time(&answer)?))
    }

    /// The servers it looks at, for a headline.
    pub(crate) fn place(&self) -> String {
        let masters = self.client.masters();
        match (&self.target, &masters[..]) {
            (Target::Cluster { .. }, masters) => format!("cluster of {} masters", masters.len()),
            (_, [master, ..]) => master.node().to_string(),
            (_, []) => String::new(),
        }
    }

    /// The prefix of all names.
    pub(crate) fn names(&self) -> String {
        self.namespace
            .as_ref()
            .map_or_else(String::new, |namespace| format!("{namespace}:"))
    }

    fn prefixed(&self, name: &[u8]) -> Vec<u8> {
        match &self.namespace {
            Some(namespace) => [namespace.as_bytes(), b":", name].concat(),
            None => name.to_vec(),
        }
    }
}

/// The servers that the arguments name.
fn target(global: &Global) -> Result<Target, Failure> {
    let url = connect::url(global)?;
    #[cfg_attr(not(feature = "tls"), expect(unused_mut))]
    let mut target = Target::parse(url).map_err(|error| failure(&error))?;
    #[cfg(feature = "tls")]
    if let Some(config) = global.tls.config([url])? {
        for endpoint in target.endpoints_mut() {
            endpoint.tls_config = Some(config.clone());
        }
    }
    Ok(target)
}

/// The failure that an error of the client is.
pub(crate) fn failure(error: &Error) -> Failure {
    let server = error.as_server().map(|error| error.kind());
    let is_denied = matches!(
        server,
        Some(ServerErrorKind::NoPerm | ServerErrorKind::NoAuth | ServerErrorKind::WrongPass)
    );
    if error.kind() == ErrorKind::Config {
        return Failure::usage(error.to_string());
    }
    Failure {
        code: if is_denied { DENIED } else { UNAVAILABLE },
        reason: if is_denied { "denied" } else { "unavailable" },
        message: error.to_string(),
    }
}

/// Columns for a table: those of the screen, or as many as it needs where none reads it.
pub(crate) fn screen_width() -> usize {
    if !io::stdout().is_terminal() {
        return usize::MAX;
    }
    ratatui::crossterm::terminal::size()
        .map_or(view::WIDTH, |(columns, _)| usize::from(columns).max(40))
}

/// Prints a text that ends its own lines.
pub(crate) fn print(context: &Context<'_>, text: &str) -> Result<(), Failure> {
    print_both(context, text.trim_end_matches('\n'), &())
}

/// Prints a line of JSON; only where that is asked for.
pub(crate) fn print_row(context: &Context<'_>, row: &impl Serialize) -> Result<(), Failure> {
    print_both(context, "", row)
}

/// Prints a text for people, or a line of JSON for programs.
pub(crate) fn print_both(
    context: &Context<'_>,
    text: &str,
    row: &impl Serialize,
) -> Result<(), Failure> {
    let printed = context.output.result(text, row);
    printed.map_err(|error| Failure::system(format!("the result cannot be printed: {error}")))
}
