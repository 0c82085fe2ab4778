/* driver.c — what a driver branch knows. The functions that it lacks are left out when its library is linked. */
#include "library.h"

/* From NVML_FI_MAX, NVML_GPM_METRIC_MAX and NVML_NVLINK_MAX_LINKS of the nvml.h that came with the branch. */
static const struct {
    uint32_t branch;
    uint32_t field_limit;
    uint32_t gpm_limit;
    uint32_t link_limit;
} GENERATIONS[] = {
    {620, 310, 477, 36}, /* CUDA 13.5 */
    {615, 308, 477, 36}, /* 13.4 */
    {610, 303, 333, 36}, /* 13.3 */
    {595, 303, 333, 18}, /* 13.2 */
    {590, 289, 210, 18}, /* 13.1 */
    {575, 274, 210, 18}, /* 12.9, 13.0 */
    {570, 269, 98, 18},  /* 12.8 */
    {560, 230, 98, 18},  /* 12.6 */
    {555, 223, 98, 18},  /* 12.5 */
    {550, 200, 98, 18},  /* 12.4 */
    {535, 197, 98, 18},  /* 12.2, 12.3 */
    {530, 173, 98, 18},  /* 12.1 */
    {525, 170, 98, 18},  /* 12.0 */
    {0, 167, 98, 18},    /* 11.8 and before */
};

static uint32_t generation(const struct state *state)
{
    uint32_t i = 0;
    while (state->driver_major < GENERATIONS[i].branch) i++;
    return i;
}

uint32_t driver_field_limit(const struct state *state) { return GENERATIONS[generation(state)].field_limit; }
uint32_t driver_gpm_limit(const struct state *state) { return GENERATIONS[generation(state)].gpm_limit; }
uint32_t driver_link_limit(const struct state *state) { return GENERATIONS[generation(state)].link_limit; }

int driver_at_least(const struct state *state, uint32_t major, uint32_t minor)
{
    return state->driver_major > major || (state->driver_major == major && state->driver_minor >= minor);
}
