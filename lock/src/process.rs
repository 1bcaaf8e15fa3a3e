//! This process as others see it: the names of its connections, and its entry on the server.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use leasehold_cluster::Target;

use crate::error::{Error, ErrorKind};

/// Longest name and version of an application, in bytes.
const LONGEST: usize = 256;

/// Most metadata.
const MOST: usize = 16;
/// Longest name of metadata, in bytes.
const LONGEST_NAME: usize = 64;

/// Longest part of a host's name in the name of a connection.
const LONGEST_HOST: usize = 64;

/// The suffix of the name of a connection for renewals.
const RENEWAL: &str = ":renewal";

/// A process that uses locks, as it describes itself. See [`Locks::process_of`](crate::Locks::process_of).
///
/// Its texts are what somebody with a right to the entry wrote: escape them where control characters matter, as
/// `Display` does.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// # let guard = locks.mutex("order:42").lock().await?;
/// # while locks.process_of(locks.client_id()).await?.is_none() {} // written behind the answer to the first lock
/// if let Some(holder) = locks.mutex("order:42").holder().await? {
///     match locks.process_of(holder.client()).await? {
///         Some(process) => {
///             println!("held by {process}"); // billing 1.2, process 4711 on web-1
///             println!("{} {:?}", process.application(), process.version());
///             println!("{:?}", process.metadata());
///             println!("{} on {}, since {:?}", process.pid(), process.host(), process.since());
///         }
///         None => println!("held by {}", holder.id()),
///     }
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) application: String,
    pub(crate) version: String,
    pub(crate) since: SystemTime,
    /// A line `<name>=<value>` each.
    pub(crate) metadata: String,
}

impl Process {
    /// This process, from now on, with the name and version of its application if it was given them, and what it tells besides.
    pub(crate) fn called(
        application: Option<(String, String)>,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self, Error> {
        let mut process = Self::here();
        if let Some((name, version)) = application {
            (process.application, process.version) = (name, version);
        }
        process.set_metadata(metadata)?;
        process.check()?;
        Ok(process)
    }

    /// This process, from now on.
    fn here() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let millis = now.map_or(0, |now| now.as_millis() as u64);
        Self {
            host: host(),
            pid: std::process::id(),
            application: program(),
            version: String::new(),
            // As it is written.
            since: SystemTime::UNIX_EPOCH + Duration::from_millis(millis),
            metadata: String::new(),
        }
    }

    /// What it tells besides, if it can be told.
    fn set_metadata(&mut self, all: &BTreeMap<String, String>) -> Result<(), Error> {
        let is_good = |(name, value): (&String, &String)| {
            let is_name = (1..=LONGEST_NAME).contains(&name.len()) && !name.contains('=');
            let controls = name.contains(char::is_control) || value.contains(char::is_control);
            is_name && value.len() <= LONGEST && !controls
        };
        if all.len() > MOST || !all.iter().all(is_good) {
            return Err(Error::new(
                ErrorKind::Config,
                "at most 16 metadata, with names of 1 to 64 bytes without `=` and values of at most 256, without control \
                 characters",
            ));
        }
        let lines: Vec<_> = all
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        self.metadata = lines.join("\n");
        Ok(())
    }

    /// Whether the application can be called so.
    fn check(&self) -> Result<(), Error> {
        if self.application.is_empty() || self.application.len().max(self.version.len()) > LONGEST {
            return Err(Error::new(
                ErrorKind::Config,
                "the application's name must have 1 to 256 bytes, and its version at most 256",
            ));
        }
        Ok(())
    }

    /// The name of the host, as the host has it.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The process id, in its container if it is in one.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// The name of the application, see [`LocksBuilder::application`](crate::LocksBuilder::application).
    #[must_use]
    pub fn application(&self) -> &str {
        &self.application
    }

    /// The version of the application, if it tells one.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        (!self.version.is_empty()).then_some(&self.version)
    }

    /// What it tells besides, see [`LocksBuilder::metadata`](crate::LocksBuilder::metadata): values by names, at most 16.
    #[must_use]
    pub fn metadata(&self) -> BTreeMap<&str, &str> {
        let lines = self.metadata.lines().take(MOST);
        lines.filter_map(|line| line.split_once('=')).collect()
    }

    /// When its `Locks` were made, by the clock of its host, to the millisecond.
    #[must_use]
    pub const fn since(&self) -> SystemTime {
        self.since
    }
}

/// `billing 1.2, process 4711 on web-1`, with control characters escaped.
impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.application.escape_debug())?;
        if let Some(version) = self.version() {
            write!(f, " {}", version.escape_debug())?;
        }
        write!(f, ", process {} on {}", self.pid, self.host.escape_debug())
    }
}

/// Gives the connections to `target` a name that `CLIENT LIST` shows, `leasehold:<host>:<pid>`, where the URL gives none.
pub(crate) fn name_connections(target: &mut Target) {
    let mut name = format!(
        "leasehold:{}:{}",
        printable(&host(), LONGEST_HOST),
        std::process::id()
    );
    if let Some(given) = target
        .servers_mut()
        .into_iter()
        .find_map(|server| server.client_name.clone())
    {
        name = given;
    }
    for endpoint in target.endpoints_mut() {
        endpoint.client_name = Some(name.clone());
    }
}

/// Tells the connections to `target` apart from others with the same name: they are for renewals.
pub(crate) fn name_for_renewals(target: &mut Target) {
    for endpoint in target.endpoints_mut() {
        if let Some(name) = &mut endpoint.client_name {
            name.push_str(RENEWAL);
        }
    }
}

/// The name of this host, from where it can be read: the call of the system takes `unsafe` or another crate.
fn host() -> String {
    let file = |path: &str| fs::read_to_string(path).ok();
    let variable = |name: &str| env::var(name).ok();
    let host = file("/proc/sys/kernel/hostname")
        .or_else(|| variable("HOSTNAME"))
        .or_else(|| variable("COMPUTERNAME"))
        .or_else(|| file("/etc/hostname"));
    match host.as_deref().map_or("", str::trim) {
        "" => "unknown".into(),
        host => cut(host, LONGEST).into(),
    }
}

/// The name by which this program was called.
fn program() -> String {
    let path = env::args_os().next().unwrap_or_default();
    let name = Path::new(&path).file_name().unwrap_or_default();
    match &*name.to_string_lossy() {
        "" => "unknown".into(),
        name => cut(name, LONGEST).into(),
    }
}

/// `text` with each character replaced that a server refuses in names, up to `longest` bytes of it.
fn printable(text: &str, longest: usize) -> String {
    let replaced = |c: char| if c.is_ascii_graphic() { c } else { '-' };
    text.chars().map(replaced).take(longest).collect()
}

/// The first bytes of `text`, at most `longest`, in whole characters.
fn cut(text: &str, longest: usize) -> &str {
    let mut end = text.len().min(longest);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_named_after_host_and_process() {
        let mut target = Target::parse("redis-sentinel://a,b/service").unwrap();
        name_connections(&mut target);
        let own = format!(
            "leasehold:{}:{}",
            printable(&host(), 64),
            std::process::id()
        );
        let names = |target: &mut Target| -> Vec<String> {
            let endpoints = target.endpoints_mut().into_iter();
            endpoints
                .map(|endpoint| endpoint.client_name.clone().unwrap())
                .collect()
        };
        assert_eq!(names(&mut target), vec![own.clone(); 3]);
        name_for_renewals(&mut target);
        assert_eq!(names(&mut target), vec![own + ":renewal"; 3]);

        let mut given = Target::parse("redis-cluster://a,b?client_name=billing").unwrap();
        name_connections(&mut given);
        assert_eq!(names(&mut given), ["billing", "billing"]);
    }

    #[test]
    fn names_have_only_what_servers_take() {
        assert_eq!(printable("web 1\n\u{e9}\u{7f}~!", 64), "web-1---~!");
        assert_eq!(printable("abc", 2), "ab");
        assert!(host().len() <= LONGEST && !host().is_empty());
        assert!(Process::here().check().is_ok());
        assert!(!Process::here().application().contains('/'));
    }

    #[test]
    fn metadata_is_bounded_and_read_as_it_was_written() {
        let told = |all: &[(&str, &str)]| {
            let all = all.iter().map(|&(name, value)| (name.into(), value.into()));
            let mut process = Process::here();
            process.set_metadata(&all.collect()).map(|()| process)
        };
        let process = told(&[("run", "7"), ("job", "a=b, c"), ("empty", "")]).unwrap();
        assert_eq!(process.metadata, "empty=\njob=a=b, c\nrun=7");
        let read: Vec<_> = process.metadata().into_iter().collect();
        assert_eq!(read, [("empty", ""), ("job", "a=b, c"), ("run", "7")]);
        assert!(told(&[]).unwrap().metadata().is_empty());

        let long = "x".repeat(257);
        let bad = [
            [("", "v")],
            [("a=b", "v")],
            [("a\n", "v")],
            [("a", "v\u{1b}")],
            [(&long[..65], "v")],
            [("a", &long)],
        ];
        for bad in bad {
            assert_eq!(told(&bad).unwrap_err().kind(), ErrorKind::Config, "{bad:?}");
        }
        assert!(told(&[(&long[..64], &long[..256])]).is_ok());
        let names: Vec<_> = (0..17).map(|n| n.to_string()).collect();
        let many: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
        assert!(told(&many[..16]).is_ok() && told(&many).is_err());
    }

    #[test]
    fn a_process_cannot_forge_a_line_of_a_log() {
        let process = Process {
            host: "web\n1".into(),
            pid: 7,
            application: "a\u{1b}[2J".into(),
            version: String::new(),
            since: SystemTime::UNIX_EPOCH,
            metadata: String::new(),
        };
        assert_eq!(process.to_string(), "a\\u{1b}[2J, process 7 on web\\n1");
        assert_eq!(process.version(), None);
        for (application, version) in [("", ""), (&*"a".repeat(257), ""), ("a", &"v".repeat(257))] {
            let process = Process {
                application: application.into(),
                version: version.into(),
                ..process.clone()
            };
            assert_eq!(process.check().unwrap_err().kind(), ErrorKind::Config);
        }
    }
}
