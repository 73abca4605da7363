//! Changes fields of a saved state, as if another release had written it.

use ciborium::Value;

/// The names and values of a struct's fields.
type Fields = Vec<(Value, Value)>;

/// Adds a field to each struct of a state, as a later release may do.
///
/// # Panics
/// Panics if the bytes are not a state.
#[must_use]
pub fn with_unknown_fields(state: &[u8]) -> Vec<u8> {
    let unknown = Value::Array(vec![Value::Bytes(vec![1; 5000]), Value::Map(Vec::new())]);
    edited(state, &|fields| {
        fields.insert(0, (Value::Text("of_later".to_owned()), unknown.clone()));
        fields.push((Value::Text("x".repeat(100)), Value::Null));
    })
}

/// Removes a field from each struct of a state, as if an earlier release had written it.
///
/// # Panics
/// Panics if the bytes are not a state, or have no such field.
#[must_use]
pub fn without_field(state: &[u8], name: &str) -> Vec<u8> {
    let without = edited(state, &|fields| {
        fields.retain(|(key, _)| key.as_text() != Some(name));
    });
    assert!(without.len() < state.len(), "no field {name}");
    without
}

fn edited(state: &[u8], edit: &dyn Fn(&mut Fields)) -> Vec<u8> {
    let (version, cbor) = state.split_first().expect("a version");
    let mut value: Value = ciborium::from_reader(cbor).expect("CBOR");
    visit(&mut value, edit);
    let mut bytes = vec![*version];
    ciborium::into_writer(&value, &mut bytes).expect("memory");
    bytes
}

fn visit(value: &mut Value, edit: &dyn Fn(&mut Fields)) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| visit(value, edit)),
        Value::Map(fields) => {
            fields.iter_mut().for_each(|(_, value)| visit(value, edit));
            // A map with one key that begins with a capital is a variant of an enum, not a struct.
            let is_lower = |(key, _): &(Value, Value)| {
                let name = key.as_text().unwrap_or_default();
                name.starts_with(|first: char| first.is_ascii_lowercase())
            };
            if fields.iter().all(is_lower) {
                edit(fields);
            }
        }
        _ => {}
    }
}
