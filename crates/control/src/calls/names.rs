//! The names of calls, parties and branches in requests.

use crate::ng::{Refusal, Request, Value};

/// The names in a request that identify a dialog.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tags<'a> {
    pub(super) from: &'a [u8],
    pub(super) to: Option<&'a [u8]>,
    pub(super) branch: Option<&'a [u8]>,
}

/// The names of a call and a dialog in a request.
pub(super) struct Names<'a> {
    pub(super) call: &'a [u8],
    pub(super) tags: Tags<'a>,
}

/// Maximum length of a name. Names in SIP have about 50 bytes.
const NAME_BYTES_MAX: usize = 1024;

pub(super) fn bounded<'a>(key: &'static str, name: &'a [u8]) -> Result<&'a [u8], Refusal> {
    match name.len() {
        ..=NAME_BYTES_MAX => Ok(name),
        _ => {
            let allowed = format!("up to {NAME_BYTES_MAX} bytes");
            Err(Refusal::value(key, &Value::bytes(name), allowed))
        }
    }
}

/// Values of `via-branch` in `rtpp-flags` with which a script asks the proxy to fill in a branch. If the proxy has none, the value arrives
/// as it is, and is ignored.
const BY_PROXY: &[&[u8]] = &[b"auto", b"auto-next", b"auto-extra", b"extra"];

/// Returns a name that the request may lack.
pub(super) fn optional<'a>(
    request: &'a Request,
    key: &'static str,
) -> Result<Option<&'a [u8]>, Refusal> {
    let bytes = request.bytes(key)?;
    let is_name = |bytes: &&[u8]| {
        let is_by_proxy = key == "via-branch" && BY_PROXY.contains(bytes);
        !bytes.is_empty() && !is_by_proxy
    };
    let bytes = bytes.filter(is_name);
    bytes.map(|bytes| bounded(key, bytes)).transpose()
}

impl<'a> Names<'a> {
    pub(super) fn of(request: &'a Request) -> Result<Names<'a>, Refusal> {
        Ok(Names {
            call: bounded("call-id", request.required("call-id")?)?,
            tags: Tags {
                from: bounded("from-tag", request.required("from-tag")?)?,
                to: optional(request, "to-tag")?,
                branch: optional(request, "via-branch")?,
            },
        })
    }
}
