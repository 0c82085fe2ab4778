/* gate.c — what happens to a call before it is answered: it is counted, then delayed, held or failed on purpose, then
 * refused when its card is gone or has no such function. It knows nothing of what a function answers.
 */
#include "library.h"

#define HOLD_POLL_US 2000u /* Python releases a held call by writing a word: nobody wakes us, so we look */

static int matches(const struct rule *rule, enum function_number function, int card)
{
    if (rule->function != ANY_FUNCTION && rule->function != (uint32_t)function) return 0;
    return rule->card == ANY_CARD || rule->card == card;
}

/* Takes one of the calls that the rule still affects; 0 when there are none left. */
static int take(struct rule *rule)
{
    int32_t left = __atomic_load_n(&rule->remaining, __ATOMIC_ACQUIRE);
    do {
        if (left < 0) return 1;
        if (left == 0) return 0;
    } while (!__atomic_compare_exchange_n(&rule->remaining, &left, left - 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return 1;
}

static void hold(struct rule *rule, uint64_t token)
{
    __atomic_add_fetch(&rule->waiting, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&rule->token, __ATOMIC_ACQUIRE) == token && __atomic_load_n(&rule->hang, __ATOMIC_ACQUIRE))
        sleep_us(HOLD_POLL_US);
    __atomic_sub_fetch(&rule->waiting, 1, __ATOMIC_ACQ_REL);
}

nvmlReturn_t gate_injected(struct state *state, enum function_number function, int card)
{
    uint32_t column = card < 0 ? MAX_CARDS : (uint32_t)card;

    __atomic_add_fetch(&state->calls[function][column], 1, __ATOMIC_RELAXED);
    if (__atomic_load_n(&state->rule_count, __ATOMIC_ACQUIRE) == 0) return NVML_SUCCESS;
    for (uint32_t i = 0; i < MAX_RULES; i++) {
        struct rule *rule = &state->rules[i];
        uint64_t token = __atomic_load_n(&rule->token, __ATOMIC_ACQUIRE);
        if (token == 0 || !matches(rule, function, card) || !take(rule)) continue;

        nvmlReturn_t error = (nvmlReturn_t)rule->error;
        __atomic_add_fetch(&rule->hits, 1, __ATOMIC_RELAXED);
        if (rule->delay_us) delay_us(rule->delay_us);
        if (rule->hang) hold(rule, token);
        if (error != NVML_SUCCESS) return error;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t gate_node(enum function_number function)
{
    nvmlReturn_t result = session_check();
    if (result == NVML_ERROR_UNINITIALIZED) return result;
    nvmlReturn_t injected = gate_injected(session_state(), function, NO_CARD);
    return injected != NVML_SUCCESS ? injected : result;
}

nvmlReturn_t gate_memory(enum function_number function)
{
    if (session_check() == NVML_ERROR_UNINITIALIZED) return NVML_ERROR_UNINITIALIZED;
    return gate_injected(session_state(), function, NO_CARD);
}

nvmlReturn_t gate_card(enum function_number function, int card)
{
    nvmlReturn_t result = session_check();
    if (result == NVML_ERROR_UNINITIALIZED) return result;

    struct state *state = session_state();
    nvmlReturn_t injected = gate_injected(state, function, card);
    if (injected != NVML_SUCCESS) return injected;
    /* Asked again: a call that was held comes back into a world in which the driver may have been reloaded. */
    result = session_check();
    if (result != NVML_SUCCESS) return result;

    const struct card_state *here = &state->cards[card];
    if (here->condition != NVML_SUCCESS) return (nvmlReturn_t)here->condition;
    if (!here->present) return NVML_ERROR_GPU_IS_LOST;
    return (nvmlReturn_t)here->function_refusal[function];
}

nvmlReturn_t gate_device(enum function_number function, nvmlDevice_t device, struct card_state **card)
{
    nvmlReturn_t result = session_check();
    if (result == NVML_ERROR_UNINITIALIZED) return result;

    int position = session_card_of(device);
    if (position < 0) {
        nvmlReturn_t injected = gate_injected(session_state(), function, NO_CARD);
        return injected != NVML_SUCCESS ? injected : result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    }
    result = gate_card(function, position);
    *card = &session_state()->cards[position];
    return result;
}
