//! How the cases of the family `attn` are called.

use thalweg_tensor::{AttentionOptions, AttentionWeights, CellWeights, Tensor};

use super::Call;

pub fn call(c: &Call<'_>) -> Option<Vec<Tensor>> {
    let (x, attrs) = (c.x, c.attrs);
    Some(match c.op {
        "sdpa" => {
            let options = AttentionOptions {
                mask: x.get(3),
                is_causal: attrs.bool("is_causal").unwrap_or(false),
                scale: attrs.f64("scale"),
                enable_gqa: attrs.bool("enable_gqa").unwrap_or(false),
            };
            vec![x[0].scaled_dot_product_attention(&x[1], &x[2], &options)]
        }
        "multi_head_attention" => {
            let weights = AttentionWeights {
                heads: attrs.int("heads")? as usize,
                in_weight: &x[1],
                in_bias: x.get(2),
                out_weight: &x[3],
                out_bias: x.get(4),
                mask: None,
                is_causal: false,
            };
            let (y, attention) = x[0].multi_head_attention(&x[0], &x[0], &weights);
            vec![y, attention]
        }
        "rotary" => vec![x[0].rotary(&x[1], &x[2])],
        "lstm_cell" => {
            let (h, c) = x[0].lstm_cell(&x[1], &x[2], &cells(&x[3..])[0]);
            vec![h, c]
        }
        "gru_cell" => vec![x[0].gru_cell(&x[1], &cells(&x[2..])[0])],
        "rnn_tanh_cell" => vec![x[0].rnn_tanh_cell(&x[1], &cells(&x[2..])[0])],
        "lstm" => {
            let (y, h, c) = x[0].lstm(&x[1], &x[2], &cells(&x[3..]), attrs.bool("bidirectional")?);
            vec![y, h, c]
        }
        "gru" => {
            let (y, h) = x[0].gru(&x[1], &cells(&x[2..]), attrs.bool("bidirectional").unwrap_or(false));
            vec![y, h]
        }
        _ => return None,
    })
}

/// Weights come four by four: input, hidden, and their biases.
fn cells(weights: &[Tensor]) -> Vec<CellWeights<'_>> {
    let cell = |w: &'_ [Tensor]| w.len() == 4;
    assert!(weights.chunks(4).all(cell), "four tensors per cell");
    let one = |i: usize| CellWeights {
        input: &weights[i],
        hidden: &weights[i + 1],
        input_bias: Some(&weights[i + 2]),
        hidden_bias: Some(&weights[i + 3]),
    };
    (0..weights.len()).step_by(4).map(one).collect()
}
