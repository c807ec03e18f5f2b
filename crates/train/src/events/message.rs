//! The wire format of protocol buffers, as far as events need it.

/// A message that is being put together, field by field.
#[derive(Debug, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn int(&mut self, field: u32, value: u64) {
        self.key(field, 0);
        self.varint(value);
    }

    pub(crate) fn double(&mut self, field: u32, value: f64) {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn float(&mut self, field: u32, value: f32) {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, field: u32, value: &[u8]) {
        self.key(field, 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }

    pub(crate) fn text(&mut self, field: u32, value: &str) {
        self.bytes(field, value.as_bytes());
    }

    /// A repeated field of doubles, packed.
    pub(crate) fn doubles(&mut self, field: u32, values: &[f64]) {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.bytes(field, &bytes);
    }

    pub(crate) fn message(&mut self, field: u32, fill: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }

    fn key(&mut self, field: u32, wire: u64) {
        self.varint(u64::from(field) << 3 | wire);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}
