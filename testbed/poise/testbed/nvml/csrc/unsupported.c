/* unsupported.c — the answer of every NVML function that no other file defines: NOT_SUPPORTED.
 *
 * The definitions are weak: where another file has the function, the linker takes that one. Such a call is still counted,
 * can be injected into, and answers for a lost card first. The first argument is looked up as a device handle and never
 * dereferenced: where it is something else, the lookup fails and the call counts as one about the node.
 */
#include "library.h"

static nvmlReturn_t refuse(enum function_number function, void *first)
{
    nvmlReturn_t result = session_check();
    if (result == NVML_ERROR_UNINITIALIZED) return result;

    int card = session_card_of((nvmlDevice_t)first);
    result = card < 0 ? gate_node(function) : gate_card(function, card);
    return result != NVML_SUCCESS ? result : NVML_ERROR_NOT_SUPPORTED;
}

#define FUNCTION(name, since)                                                                                          \
    EXPORT __attribute__((weak)) nvmlReturn_t name(void *first) { return refuse(FN_##name, first); }
#include "functions.def"
#undef FUNCTION
