/* rope.c - frequency[i] = base^(-2i/D), changed by the file's scaling.
 *
 *   linear   every frequency / factor
 *   llama3   frequency / divisor[i], the divisors being a tensor of the file
 *   yarn     short wavelengths keep their frequency, long ones take frequency / factor, a ramp over i between; cosines and
 *            sines grow by 1 + 0.1 ln(factor)   (Peng and others, "YaRN", 2023; beta_fast and beta_slow rotations over the
 *            original context bound the ramp)
 *
 * All of them only change the frequency, so a position costs one product, one sine and one cosine a pair. */
#include "rope.h"

#include "numeric.h"

/* The pair (as a real number) that turns `rotations` times over the original context. */
static double pair_of(double rotations, double context, double base, double dims)
{
    return dims * log_f64(context / (rotations * 6.28318530717958647692)) / (2.0 * log_f64(base));
}

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

void rope_init(struct rope *r, const struct model_rope *m, const float *divisors)
{
    const double dims = 2.0 * r->half, log_base = log_f64((double)m->freq_base);
    const double factor = m->factor > 0 ? (double)m->factor : 1.0;
    double low = 0, high = 0, mix = 0;

    r->magnitude = 1.0f;
    if (m->scaling == ROPE_SCALING_YARN) {
        const double context = m->original_context;
        low = clamp(pair_of((double)m->yarn_beta_fast, context, (double)m->freq_base, dims), 0, dims - 1);
        high = clamp(pair_of((double)m->yarn_beta_slow, context, (double)m->freq_base, dims), 0, dims - 1);
        low = low - round_even(low) < 0 ? round_even(low) - 1 : round_even(low);     /* floor */
        high = high - round_even(high) > 0 ? round_even(high) + 1 : round_even(high); /* ceil */
        mix = (double)m->yarn_ext_factor;
        r->magnitude = m->yarn_attn_factor;
        if (mix != 0)
            r->magnitude = (float)((double)m->yarn_attn_factor * (1.0 + 0.1 * log_f64(factor)));
    }
    for (uint32_t i = 0; i < r->half; i++) {
        double frequency = exp_f64(-2.0 * i / dims * log_base);
        if (divisors != NULL)
            frequency /= (double)divisors[i];
        const double width = high - low > 0.001 ? high - low : 0.001;
        const double keep = (1.0 - clamp((i - low) / width, 0, 1)) * mix;
        if (m->scaling != ROPE_SCALING_NONE)
            frequency = frequency / factor * (1.0 - keep) + frequency * keep;
        r->frequencies[i] = frequency;
    }
}

void rope_position(const struct rope *r, uint32_t position, float *ret_cosines, float *ret_sines)
{
    for (uint32_t i = 0; i < r->half; i++) {
        double s, c;
        sincos_f64((double)position * r->frequencies[i], &s, &c);
        ret_cosines[i] = (float)(c * (double)r->magnitude);
        ret_sines[i] = (float)(s * (double)r->magnitude);
    }
}
