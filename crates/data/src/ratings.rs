//! Ratings of things by people, as MovieTweetings and MovieLens write them: `user::item::rating::time`.

use std::collections::HashMap;
use std::io::BufRead;
use std::path::Path;

use thalweg_tensor::Tensor;

use crate::error::{DataError, Reason};
use crate::examples::Examples;
use crate::records::{self, Lines, OnError, Read, number};

/// Who rated what how. Users and items are numbered from 0 in the order in which they first appear.
#[derive(Debug, Clone, Default)]
pub struct Ratings {
    /// The user of each rating.
    pub users: Vec<u32>,
    /// The item of each rating.
    pub items: Vec<u32>,
    /// The rating itself.
    pub ratings: Vec<f32>,
    /// When, in seconds since 1970.
    pub times: Vec<i64>,
    /// The name of user `i` in the file.
    pub user_names: Vec<String>,
    /// The name of item `i` in the file.
    pub item_names: Vec<String>,
}

impl Ratings {
    /// Number of ratings.
    pub fn len(&self) -> usize {
        self.ratings.len()
    }

    /// Whether nobody rated anything.
    pub fn is_empty(&self) -> bool {
        self.ratings.is_empty()
    }

    /// `x` has pairs (user, item) as i64, `y` the ratings.
    pub fn examples(&self) -> Examples {
        let pairs = self.users.iter().zip(&self.items).flat_map(|(&u, &i)| [i64::from(u), i64::from(i)]);
        let x = Tensor::from_vec(pairs.collect::<Vec<_>>(), [self.len(), 2]);
        Examples::new(x, Tensor::from(self.ratings.clone())).expect("one row per rating in both")
    }
}

/// The ratings of a file, which may be gzipped.
pub fn read(path: impl AsRef<Path>, on_error: OnError) -> Result<Read<Ratings>, DataError> {
    parse(path.as_ref(), records::open(path.as_ref())?, on_error)
}

/// The ratings in these bytes, gzipped or not; `name` is for messages.
///
/// ```
/// use thalweg_data::{OnError, ratings};
/// let text = "7::0104257::8::1364690142\n7::1853728::9::1366576639\n";
/// let r = ratings::parse("ratings.dat", text.as_bytes(), OnError::Stop)?.data;
/// assert_eq!((r.users, r.items, r.ratings), (vec![0, 0], vec![0, 1], vec![8.0, 9.0]));
/// assert_eq!(r.item_names[1], "1853728");
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
pub fn parse(
    name: impl AsRef<Path>,
    bytes: impl BufRead,
    on_error: OnError,
) -> Result<Read<Ratings>, DataError> {
    let path = name.as_ref();
    let bytes = records::unpacked(bytes).map_err(DataError::io("read", path))?;
    let mut r = Ratings::default();
    let (mut users, mut items) = (HashMap::new(), HashMap::new());
    let skipped = Lines::new(path, bytes).each(on_error, |line| {
        let fields: Vec<&str> = line.split("::").collect();
        let [user, item, rating, time] = fields[..] else {
            return Err(Reason::Fields { want: 4, got: fields.len() });
        };
        let rating: f32 = number("rating", rating, "a number")?;
        let time = number("time", time, "a whole number of seconds")?;
        if user.is_empty() || item.is_empty() {
            let field = if user.is_empty() { "user" } else { "item" };
            return Err(Reason::Missing { field: field.into() });
        }
        r.users.push(numbered(user, &mut users, &mut r.user_names));
        r.items.push(numbered(item, &mut items, &mut r.item_names));
        r.ratings.push(rating);
        r.times.push(time);
        Ok(())
    })?;
    Ok(Read { data: r, skipped })
}

fn numbered(name: &str, known: &mut HashMap<String, u32>, names: &mut Vec<String>) -> u32 {
    if let Some(&id) = known.get(name) {
        return id;
    }
    let id = names.len() as u32;
    known.insert(name.to_owned(), id);
    names.push(name.to_owned());
    id
}
