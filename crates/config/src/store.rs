//! Checks `[s3]`, which contains the store for recordings to `s3://…` and the spool.

use toml::Spanned;

use super::checker::Checker;
use super::raw::RawS3;
use super::store_spec::StoreSpec;

pub(super) fn check(checker: &mut Checker<'_>, raw: &Spanned<RawS3>) -> Option<StoreSpec> {
    let place = raw.span();
    let raw = raw.get_ref();
    let Some(spool) = &raw.spool else {
        checker.problems.add_missing(
            "[s3] without `spool`",
            "add the folder for recordings that the store does not have yet: spool = \"/var/lib/threadbare/spool\"",
            place,
        );
        return None;
    };
    if !spool.get_ref().starts_with('/') {
        checker.refuse(Some(spool), "spool", "a path that begins with /");
    }
    let endpoint = raw.endpoint.as_ref();
    if let Some(url) = endpoint {
        // Only the URL is checked. Region and bucket come from the templates of the recordings.
        let checked = threadbare_s3::Endpoint::new(Some(url.get_ref()), "region", "bucket", true);
        if checked.is_err() {
            let allowed =
                "http:// or https://, a host and a port, such as https://s3.example.net:9000";
            checker.refuse(endpoint, "endpoint", allowed);
        }
    }
    Some(StoreSpec {
        spool: spool.get_ref().into(),
        endpoint: endpoint.map(|url| url.get_ref().clone()),
        path_style: raw.path_style.as_ref().is_some_and(|flag| *flag.get_ref()),
        ca: raw.ca.as_ref().map(|file| file.get_ref().into()),
    })
}
