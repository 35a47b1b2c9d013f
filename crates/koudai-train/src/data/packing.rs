//! Lays documents into rows of one length.

use super::Document;

/// A part of a document: so many inputs from a token on, each with the token after it as its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which document.
    pub document: Document,
    /// Its first input.
    pub start: usize,
    /// Inputs.
    pub len: usize,
}

/// What [`pack`] made.
#[derive(Debug, PartialEq, Eq)]
pub struct Packed {
    /// Pieces of each row, which they fill or don't.
    pub rows: Vec<Vec<Piece>>,
    /// Documents longer than a row that were left out.
    pub too_long: usize,
}

/// Rows that a document may still go into; more would pack a little tighter and take longer.
const OPEN_ROWS: usize = 32;

/// Packs documents in their order. With `split` rows are filled to the end and documents go on in the
/// next; otherwise a document goes into the first row of the last few that has room, or is left out if
/// none could.
pub fn pack(
    documents: &[Document],
    inputs: impl Fn(&Document) -> usize,
    length: usize,
    split: bool,
) -> Packed {
    let mut packed = Packed { rows: Vec::new(), too_long: 0 };
    // Row and room in it.
    let mut open: Vec<(usize, usize)> = Vec::new();
    for document in documents {
        let (mut start, end) = (0, inputs(document));
        if !split && end > length {
            packed.too_long += 1;
            continue;
        }
        while start < end {
            let fits = |(_, room): &(usize, usize)| *room >= if split { 1 } else { end - start };
            let slot = open.iter().position(fits).unwrap_or_else(|| {
                if open.len() == OPEN_ROWS {
                    open.remove(0);
                }
                open.push((packed.rows.len(), length));
                packed.rows.push(Vec::new());
                open.len() - 1
            });
            let (row, room) = &mut open[slot];
            let len = (end - start).min(*room);
            packed.rows[*row].push(Piece { document: *document, start, len });
            *room -= len;
            if *room == 0 {
                open.remove(slot);
            }
            start += len;
        }
    }
    packed
}
