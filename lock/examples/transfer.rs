//! Moves money between two accounts, each of which is a file of its own: both locks or none, in whatever order they are named.
//!
//! `transfer URL DIRECTORY FROM TO AMOUNT`
//!
//! A file holds a balance and the fencing token of who wrote it last. A process that lost its locks without noticing, stopped
//! for longer than its lease, has older tokens than who came after it, and its write is refused.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::{FencingToken, Locks};

struct Account {
    file: PathBuf,
    balance: i64,
    /// Of the last writer.
    token: u64,
}

impl Account {
    fn open(directory: &Path, name: &str) -> Result<Self, Box<dyn Error>> {
        let file = directory.join(name);
        let text = std::fs::read_to_string(&file)?;
        let (balance, token) = text.trim().split_once(' ').ok_or("not an account")?;
        Ok(Self {
            file,
            balance: balance.parse()?,
            token: token.parse()?,
        })
    }

    fn write(&self, balance: i64, token: FencingToken) -> Result<(), Box<dyn Error>> {
        if token.as_u64() < self.token {
            return Err("somebody took the lock since".into());
        }
        Ok(std::fs::write(&self.file, format!("{balance} {token}\n"))?)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, directory, from, to, amount] = &arguments[..] else {
        return Err("usage: transfer URL DIRECTORY FROM TO AMOUNT".into());
    };
    if from == to {
        return Err("name two accounts".into());
    }
    let (directory, amount) = (Path::new(directory), amount.parse::<i64>()?);
    let locks = Locks::builder(url.as_str())
        .namespace("bank")
        .connect()
        .await?;
    let both = locks.multi([from, to]);
    let Some(guard) = both.try_lock_for(Duration::from_secs(10)).await? else {
        return Err("the accounts are busy, try again later".into());
    };
    let moved = transfer(directory, from, to, amount, &guard.tokens());
    // Also if it failed: a drop would not wait for the server, and a program that ends at once may cut it off.
    guard.release().await?;
    moved
}

fn transfer(
    directory: &Path,
    from: &str,
    to: &str,
    amount: i64,
    tokens: &BTreeMap<&str, FencingToken>,
) -> Result<(), Box<dyn Error>> {
    let (payer, payee) = (
        Account::open(directory, from)?,
        Account::open(directory, to)?,
    );
    if payer.balance < amount {
        return Err(format!("{from} has only {}", payer.balance).into());
    }
    payer.write(payer.balance - amount, tokens[from])?;
    payee.write(payee.balance + amount, tokens[to])?;
    println!("{amount} from {from} to {to}");
    Ok(())
}
