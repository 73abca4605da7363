//! Credentials, and signing of requests. Nothing that this module prints contains a secret.

use std::time::Duration;

use bytes::Bytes;
use reqsign_aws_v4::{
    Credential, DefaultCredentialProvider, RequestSigner, StaticCredentialProvider,
};
use reqsign_command_execute_tokio::TokioCommandExecute;
use reqsign_core::{Context, HttpSend, OsEnv, Signer};
use reqsign_file_read_tokio::TokioFileRead;
use reqwest::header::{CONTENT_TYPE, HeaderName, RANGE};
use reqwest::{Client, Request};

use crate::error::{Error, causes};

/// Maximum time for finding credentials. The services of machines and containers answer at once or not at all.
const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response with credentials.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// Source of credentials.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub enum Credentials {
    /// The usual places, in this order: environment, `~/.aws/credentials` and `~/.aws/config` with `AWS_PROFILE`, SSO, web
    /// identity, a program that the profile names, ECS, EC2. Credentials are refreshed before they expire.
    #[default]
    Usual,
    /// These credentials.
    Given {
        /// Access key.
        key: String,
        /// Secret access key.
        secret: String,
        /// Session token.
        token: Option<String>,
    },
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Credentials::Usual => "Usual",
            Credentials::Given { .. } => "Given(***)",
        })
    }
}

impl Credentials {
    /// Creates credentials from properties: a key with its secret, or neither of them.
    ///
    /// # Errors
    /// Fails with [`Error::Setting`] if only one of them is given.
    pub fn given(
        key: Option<&str>,
        secret: Option<&str>,
        token: Option<&str>,
    ) -> Result<Self, Error> {
        let set = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
        match (set(key), set(secret), set(token)) {
            (Some(key), Some(secret), token) => Ok(Credentials::Given { key, secret, token }),
            (None, None, None) => Ok(Credentials::Usual),
            (None, None, Some(_)) => Err(Error::Setting(
                "session-token is set without access-key and secret-access-key; expected all three"
                    .into(),
            )),
            (key, _, _) => Err(Error::Setting(format!(
                "{} is not set; access-key and secret-access-key go together",
                if key.is_none() {
                    "access-key"
                } else {
                    "secret-access-key"
                }
            ))),
        }
    }
}

/// The client for services that give credentials.
#[derive(Debug)]
struct Http(Client);

impl HttpSend for Http {
    async fn http_send(
        &self,
        request: http::Request<Bytes>,
    ) -> reqsign_core::Result<http::Response<Bytes>> {
        let failed = |text: String| reqsign_core::Error::unexpected(text);
        let request =
            Request::try_from(request).map_err(|error| failed(causes(&error.without_url())))?;
        let ask = async {
            let mut response = self.0.execute(request).await?;
            let mut head = http::Response::new(Bytes::new());
            *head.status_mut() = response.status();
            *head.headers_mut() = std::mem::take(response.headers_mut());
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await? {
                body.extend_from_slice(&chunk);
                if body.len() > ANSWER_BYTES_MAX {
                    break;
                }
            }
            *head.body_mut() = body.into();
            Ok(head)
        };
        match tokio::time::timeout(CREDENTIALS_TIMEOUT, ask).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                let error: reqwest::Error = error;
                Err(failed(causes(&error.without_url())))
            }
            Err(_) => Err(failed(format!(
                "the source of the credentials did not answer for {} s",
                CREDENTIALS_TIMEOUT.as_secs()
            ))),
        }
    }
}

/// Signs requests (AWS Signature Version 4, in headers). Clones share the credentials found in the usual places.
#[derive(Clone)]
pub(crate) struct Signs(Signer<Credential>);

impl std::fmt::Debug for Signs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signs(***)")
    }
}

impl Signs {
    pub(crate) fn new(credentials: &Credentials, region: &str, client: &Client) -> Self {
        let context = Context::new()
            .with_file_read(TokioFileRead)
            .with_http_send(Http(client.clone()))
            .with_command_execute(TokioCommandExecute)
            .with_env(OsEnv);
        let signer = RequestSigner::new("s3", region);
        Signs(match credentials {
            Credentials::Usual => Signer::new(context, DefaultCredentialProvider::new(), signer),
            Credentials::Given { key, secret, token } => {
                let provider = StaticCredentialProvider::new(key, secret);
                let provider = match token {
                    Some(token) => provider.with_session_token(token),
                    None => provider,
                };
                Signer::new(context, provider, signer)
            }
        })
    }

    /// Adds the headers that authorise a request. All other headers that begin with `x-amz-` must already be set.
    pub(crate) async fn sign(&self, request: &mut Request) -> Result<(), Error> {
        let mut head = http::Request::new(());
        *head.method_mut() = request.method().clone();
        *head.uri_mut() =
            request
                .url()
                .as_str()
                .parse()
                .map_err(|error: http::uri::InvalidUri| {
                    Error::Setting(format!("the URL is not usable: {error}"))
                })?;
        // Sign only the headers that define the request, because others may be added or changed on the way.
        for (name, value) in request.headers().iter().filter(|(name, _)| is_signed(name)) {
            head.headers_mut().append(name, value.clone());
        }
        let (mut parts, ()) = head.into_parts();
        // Its errors contain places and codes, but no secrets; a test of this crate checks that.
        let signed = self.0.sign(&mut parts, None).await;
        signed.map_err(|error| Error::Credentials(causes(&error)))?;
        // The iterator yields a name only with its first value. Further values are already in the request.
        for name in parts
            .headers
            .keys()
            .filter(|name| !is_signed(name) || name.as_str() == "x-amz-security-token")
        {
            request.headers_mut().remove(name);
        }
        for (name, value) in &parts.headers {
            if !request.headers().contains_key(name) {
                request.headers_mut().append(name, value.clone());
            }
        }
        Ok(())
    }
}

fn is_signed(name: &HeaderName) -> bool {
    name == CONTENT_TYPE || name == RANGE || name.as_str().starts_with("x-amz-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_and_errors_have_no_secret() {
        let given =
            Credentials::given(Some("AKIAKEY"), Some("SECRETSECRET"), Some("TOKEN")).unwrap();
        let signs = Signs::new(&given, "eu-west-1", &Client::new());
        let text = format!("{given:?} {given:#?} {signs:?}");
        for secret in ["AKIAKEY", "SECRETSECRET", "TOKEN"] {
            assert!(!text.contains(secret), "{text}");
        }
    }

    #[test]
    fn incomplete_credentials_are_refused() {
        for (key, secret, token, expected) in [
            (Some("a"), None, None, "secret-access-key is not set"),
            (None, Some("b"), None, "access-key is not set"),
            (Some(""), Some("b"), None, "access-key is not set"),
            (None, None, Some("c"), "session-token is set without"),
        ] {
            let said = Credentials::given(key, secret, token)
                .unwrap_err()
                .to_string();
            assert!(said.starts_with(expected), "{said}");
        }
        assert_eq!(
            Credentials::given(None, Some(""), None),
            Ok(Credentials::Usual)
        );
    }
}
