//! Any URL: no panic, no password in a message, and a parsed endpoint prints as a URL that parses
//! to the same.
#![no_main]

use leasehold_resp::{Address, Endpoint};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|url: &str| {
    match Endpoint::parse(url) {
        Ok(endpoint) => {
            if endpoint.password.is_some() {
                let mut other = endpoint.clone();
                other.password = Some("another".to_owned());
                assert_eq!(
                    format!("{endpoint:?}"),
                    format!("{other:?}"),
                    "nothing of a password is shown"
                );
            }
            if let Address::Tcp { .. } = endpoint.address {
                let again = Endpoint::parse(&format!(
                    "redis://{}/{}",
                    endpoint.node(),
                    endpoint.database
                ));
                let again = again.expect("an address that was understood is understood again");
                assert_eq!(
                    (again.address, again.database),
                    (endpoint.address, endpoint.database)
                );
            }
        }
        // The scheme is all that may be quoted, and it is short; the rest is a sentence of ours.
        Err(error) => assert!(error.to_string().len() < 256, "{error}"),
    }
});
