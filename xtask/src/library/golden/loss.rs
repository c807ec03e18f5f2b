//! How the cases of the family `loss` are called.

use thalweg_tensor::{
    BceOptions, CrossEntropyOptions, CtcOptions, GaussianNllOptions, PoissonNllOptions, Reduction, Tensor,
    TripletOptions,
};

use super::Call;

pub fn call(c: &Call<'_>) -> Option<Vec<Tensor>> {
    let (x, t, third) = (&c.x[0], &c.x[1], c.x.get(2));
    let attrs = c.attrs;
    let reduction = match attrs.str("reduction") {
        Some("sum" | "batchmean") => Reduction::Sum,
        Some("none") => Reduction::None,
        // Some cases leave it to the shape of what is expected.
        None if attrs.raw("reduction").is_none() && x.rank() == 1 && c.op == "bce_with_logits" => {
            Reduction::None
        }
        _ => Reduction::Mean,
    };
    let classes = || CrossEntropyOptions {
        weight: third,
        ignore_index: attrs.int("ignore_index").unwrap_or(-100) as i64,
        label_smoothing: attrs.f64("label_smoothing").unwrap_or(0.0),
        reduction,
    };
    let lengths = |name: &str| attrs.ints(name).map(|l| l.iter().map(|&n| n as usize).collect::<Vec<_>>());
    Some(vec![match c.op {
        "cross_entropy" => x.cross_entropy_with(t, &classes()),
        "nll_loss" => x.nll_loss(t, &classes()),
        "mse_loss" => x.mse_loss(t, reduction),
        "l1_loss" => x.l1_loss(t, reduction),
        "smooth_l1_loss" => x.smooth_l1_loss(t, attrs.f64("beta").unwrap_or(1.0), reduction),
        "huber_loss" => x.huber_loss(t, attrs.f64("delta").unwrap_or(1.0), reduction),
        "soft_margin_loss" => x.soft_margin_loss(t, reduction),
        "poisson_nll_loss" => x.poisson_nll_loss(t, &PoissonNllOptions { reduction, ..Default::default() }),
        "binary_cross_entropy" => x.binary_cross_entropy(t, reduction),
        "bce_with_logits" => {
            x.bce_with_logits_with(t, &BceOptions { pos_weight: third, reduction, ..Default::default() })
        }
        "kl_div" => {
            let loss = x.kl_div(t, attrs.bool("log_target").unwrap_or(false), reduction);
            if attrs.str("reduction") == Some("batchmean") { loss / x.size(0) as f64 } else { loss }
        }
        "cosine_embedding_loss" => x.cosine_embedding_loss(t, third?, 0.0, reduction),
        "triplet_margin_loss" => {
            x.triplet_margin_loss(t, third?, &TripletOptions { reduction, ..Default::default() })
        }
        "margin_ranking_loss" => x.margin_ranking_loss(t, third?, 0.0, reduction),
        "gaussian_nll_loss" => {
            x.gaussian_nll_loss(t, third?, &GaussianNllOptions { reduction, ..Default::default() })
        }
        "cosine_similarity" => x.cosine_similarity(t, attrs.int("dim")?, 1e-8),
        "cdist" => x.cdist(t, attrs.f64("p")?),
        "ctc_loss" => {
            let (input, target) = (lengths("input_lengths")?, lengths("target_lengths")?);
            let options = CtcOptions { blank: attrs.int("blank")? as i64, reduction, ..Default::default() };
            x.log_softmax(2).ctc_loss(t, &input, &target, &options)
        }
        _ => return None,
    }])
}
