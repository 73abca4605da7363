//! The reason for an element's failure, as a sentence for operators.
//!
//! GStreamer's messages have a general sentence ("Could not open resource for reading.") and a debug string. The debug string
//! has a line with the position in the source code, and often the cause in the next line. The sentence for operators includes
//! the cause. The position is only for the debug log.

/// Returns the sentence for an error or a warning of `element`.
pub(crate) fn plain(element: &str, message: &str, debug: Option<&str>) -> String {
    let message = message.trim().trim_end_matches('.');
    // The debug string is "FILE(LINE): FUNCTION (): OBJECT:". If there is a cause, it follows on a new line (gst_element_message_full).
    let cause = debug.and_then(|debug| debug.split_once(":\n"));
    let cause = cause.map_or("", |(_, cause)| cause.trim());
    match (element, cause) {
        ("", "") => message.to_owned(),
        ("", cause) => format!("{message}: {cause}"),
        (element, "") => format!("{element}: {message}"),
        (element, cause) => format!("{element}: {message}: {cause}"),
    }
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn the_cause_is_shown_and_the_source_position_is_not() {
        let place = "crates/gst/src/kit/socket.rs(57): open (): /GstPipeline:a/TsUdpSrc:s";
        let full = format!("{place}:\ncannot bind 127.0.0.1:5004: Address already in use");
        assert_eq!(
            plain("s", "Could not open resource for reading.", Some(&full)),
            "s: Could not open resource for reading: cannot bind 127.0.0.1:5004: Address already in use"
        );
        for debug in [Some(place), None] {
            assert_eq!(plain("s", "Not negotiated.", debug), "s: Not negotiated");
        }
        assert_eq!(plain("", "x", Some("p:\ny\n")), "x: y");
    }
}
