//! The documents of S3's interface that uploads need ("Amazon S3 API Reference").

use quick_xml::de::from_str;
use quick_xml::escape::escape;
use serde::Deserialize;

use crate::error::{Error, shown};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Refusal {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Created {
    upload_id: String,
}

#[derive(Debug, Deserialize)]
struct Completed {
    #[serde(rename = "ETag", default)]
    etag: String,
}

/// A part that the store has.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct StoredPart {
    /// Number of the part, from 1.
    #[serde(rename = "PartNumber")]
    pub number: u16,
    /// ETag of its content.
    #[serde(rename = "ETag")]
    pub etag: String,
    /// Size of the part in bytes.
    #[serde(rename = "Size")]
    pub bytes: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Parts {
    #[serde(rename = "Part", default)]
    pub(crate) parts: Vec<StoredPart>,
    #[serde(default)]
    pub(crate) is_truncated: bool,
    #[serde(default)]
    pub(crate) next_part_number_marker: Option<u32>,
}

/// An upload that is neither complete nor aborted.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct OpenUpload {
    /// Key of the object.
    pub key: String,
    /// Id of the upload.
    pub upload_id: String,
    /// Start time in the store's format.
    #[serde(default)]
    pub initiated: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Uploads {
    #[serde(rename = "Upload", default)]
    pub(crate) uploads: Vec<OpenUpload>,
    #[serde(default)]
    pub(crate) is_truncated: bool,
    #[serde(default)]
    pub(crate) next_key_marker: Option<String>,
    #[serde(default)]
    pub(crate) next_upload_id_marker: Option<String>,
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Error> {
    from_str(text).map_err(|error| Error::Answer(shown(&error.to_string())))
}

/// Returns code and message of a refusal. If the text is something else, returns its beginning.
pub(crate) fn refusal(text: &str) -> (String, String) {
    match read::<Refusal>(text) {
        Ok(refusal) => (shown(&refusal.code), shown(&refusal.message)),
        Err(_) => (String::new(), String::new()),
    }
}

pub(crate) fn created(text: &str) -> Result<String, Error> {
    let created: Created = read(text)?;
    if created.upload_id.is_empty() {
        Err(Error::Answer("the upload has no id".into()))
    } else {
        Ok(created.upload_id)
    }
}

/// Returns the ETag of a completed upload. The store may begin its response before it knows the result, so a refusal may come
/// with status 200.
pub(crate) fn completed(text: &str) -> Result<String, Error> {
    if let Ok(completed) = read::<Completed>(text)
        && !completed.etag.is_empty()
    {
        return Ok(completed.etag);
    }
    let (code, message) = refusal(text);
    if code.is_empty() {
        Err(Error::Answer(
            "the answer has neither an ETag nor an error code, so the upload may or may not be complete".into(),
        ))
    } else {
        Err(Error::Refused {
            status: 200,
            code,
            message,
            retry_after_ms: None,
        })
    }
}

pub(crate) fn parts(text: &str) -> Result<Parts, Error> {
    read(text)
}

pub(crate) fn uploads(text: &str) -> Result<Uploads, Error> {
    read(text)
}

/// Returns the document with the list of parts, which completes an upload.
pub(crate) fn complete<'a>(parts: impl Iterator<Item = (u16, &'a str)>) -> String {
    let mut text =
        String::from("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (number, etag) in parts {
        text.push_str(&format!(
            "<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag></Part>",
            escape(etag)
        ));
    }
    text.push_str("</CompleteMultipartUpload>");
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The examples in the API reference are parsed.
    #[test]
    fn responses_of_the_store_are_parsed() {
        let text = r#"<?xml version="1.0" encoding="UTF-8"?>
            <InitiateMultipartUploadResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
            <Bucket>example-bucket</Bucket><Key>example-object</Key><UploadId>VXBsb2Fk</UploadId></InitiateMultipartUploadResult>"#;
        assert_eq!(created(text).as_deref(), Ok("VXBsb2Fk"));
        let text = r#"<CompleteMultipartUploadResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
            <Location>http://x</Location><ETag>"3858f6-9"</ETag></CompleteMultipartUploadResult>"#;
        assert_eq!(completed(text).as_deref(), Ok("\"3858f6-9\""));
        let text = "<Error><Code>InternalError</Code><Message>We encountered an internal error. Please try again.</Message></Error>";
        assert!(completed(text).unwrap_err().is_transient());
        let text = r#"<ListPartsResult><IsTruncated>true</IsTruncated><NextPartNumberMarker>3</NextPartNumberMarker>
            <Part><PartNumber>2</PartNumber><ETag>"a"</ETag><Size>10</Size></Part>
            <Part><PartNumber>3</PartNumber><ETag>"b"</ETag><Size>5</Size></Part></ListPartsResult>"#;
        let list = parts(text).unwrap();
        assert_eq!(
            (
                list.parts.len(),
                list.is_truncated,
                list.next_part_number_marker
            ),
            (2, true, Some(3))
        );
        assert_eq!(
            list.parts[1],
            StoredPart {
                number: 3,
                etag: "\"b\"".into(),
                bytes: 5
            }
        );
        let text = "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>";
        assert!(uploads(text).unwrap().uploads.is_empty());
    }

    #[test]
    fn the_list_of_parts_is_written() {
        let text = complete([(1, "\"a\""), (2, "<&>")].into_iter());
        assert!(
            text.contains("<Part><PartNumber>1</PartNumber><ETag>&quot;a&quot;</ETag></Part>"),
            "{text}"
        );
        assert!(text.contains("<ETag>&lt;&amp;&gt;</ETag>"), "{text}");
    }

    proptest! {
        /// A server may send anything.
        #[test]
        fn no_response_causes_a_panic(text in "[<>/a-zA-Z&;\"= ]{0,80}") {
            let _ = (created(&text), completed(&text), parts(&text), uploads(&text), refusal(&text));
        }
    }
}
