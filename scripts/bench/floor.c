/* The floor under any exporter: the library calls of one fast tick of `poise exporter`, for all cards, with nothing done with the answers.
 *
 * Usage: floor PASSES — prints one JSON object: nanoseconds per pass over all cards (median and least of PASSES passes).
 * bench_exporter.py checks that a pass makes the calls of a tick, function by function. Driver branch 570 (profile h100x8).
 */
#include <dlfcn.h>
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CARDS 16
#define LINKS 36
#define SAMPLES 128
#define PROCESSES 64
#define ALL_LINKS 0xFFFFFFFFu
#define SECOND_US 1000000ull

static void *library;

static void *symbol(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "floor: the library has no %s\n", name);
        exit(1);
    }
    return found;
}

/* nvml.h renames functions to their newest version, so the types are spelled out where they differ. */
typedef nvmlReturn_t (*init_t)(unsigned int);
typedef nvmlReturn_t (*count_t)(unsigned int *);
typedef nvmlReturn_t (*handle_t)(unsigned int, nvmlDevice_t *);
typedef nvmlReturn_t (*rates_t)(nvmlDevice_t, nvmlUtilization_t *);
typedef nvmlReturn_t (*samples_t)(nvmlDevice_t, nvmlSamplingType_t, unsigned long long, nvmlValueType_t *, unsigned int *, nvmlSample_t *);
typedef nvmlReturn_t (*memory_t)(nvmlDevice_t, nvmlMemory_v2_t *);
typedef nvmlReturn_t (*number_t)(nvmlDevice_t, unsigned int *);
typedef nvmlReturn_t (*long_t)(nvmlDevice_t, unsigned long long *);
typedef nvmlReturn_t (*temperature_t)(nvmlDevice_t, nvmlTemperature_v1_t *);
typedef nvmlReturn_t (*margin_t)(nvmlDevice_t, nvmlMarginTemperature_v1_t *);
typedef nvmlReturn_t (*clock_get_t)(nvmlDevice_t, nvmlClockType_t, unsigned int *);
typedef nvmlReturn_t (*state_t)(nvmlDevice_t, nvmlPstates_t *);
typedef nvmlReturn_t (*fields_t)(nvmlDevice_t, int, nvmlFieldValue_t *);
typedef nvmlReturn_t (*processes_t)(nvmlDevice_t, unsigned int *, nvmlProcessInfo_t *);
typedef nvmlReturn_t (*support_t)(nvmlDevice_t, nvmlGpmSupport_t *);
typedef nvmlReturn_t (*allocate_t)(nvmlGpmSample_t *);
typedef nvmlReturn_t (*sample_t)(nvmlDevice_t, nvmlGpmSample_t);
typedef nvmlReturn_t (*compare_t)(nvmlGpmMetricsGet_t *);

static nvmlDevice_t cards[CARDS];
static unsigned int card_count;
static nvmlFieldValue_t fields[CARDS][2 * (LINKS + 1) + 6];
static int field_count;
static unsigned long long newest[CARDS];
static nvmlGpmSample_t activity[CARDS][2];
static nvmlGpmMetricsGet_t compared = {.version = NVML_GPM_METRICS_GET_VERSION, .numMetrics = 6};

static void add_field(unsigned int card, int *place, unsigned int id, unsigned int scope)
{
    fields[card][*place].fieldId = id;
    fields[card][*place].scopeId = scope;
    (*place)++;
}

static unsigned long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now); /* what others do on the machine does not count */
    return (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec;
}

static int compare(const void *left, const void *right)
{
    unsigned long long a = *(const unsigned long long *)left, b = *(const unsigned long long *)right;
    return a < b ? -1 : a > b;
}

int main(int argc, char **argv)
{
    long passes = argc > 1 ? atol(argv[1]) : 0;
    if (passes < 1 || !(library = dlopen("libnvidia-ml.so.1", RTLD_NOW))) {
        fprintf(stderr, "usage: floor PASSES, with libnvidia-ml.so.1 where the linker finds it\n");
        return 2;
    }
    rates_t rates_of = (rates_t)symbol("nvmlDeviceGetUtilizationRates");
    samples_t samples_of = (samples_t)symbol("nvmlDeviceGetSamples");
    memory_t memory_of = (memory_t)symbol("nvmlDeviceGetMemoryInfo_v2");
    temperature_t temperature_of = (temperature_t)symbol("nvmlDeviceGetTemperatureV");
    margin_t margin_of = (margin_t)symbol("nvmlDeviceGetMarginTemperature");
    clock_get_t clock_of = (clock_get_t)symbol("nvmlDeviceGetClockInfo");
    state_t state_of = (state_t)symbol("nvmlDeviceGetPerformanceState");
    long_t reasons_of = (long_t)symbol("nvmlDeviceGetCurrentClocksEventReasons");
    fields_t fields_of = (fields_t)symbol("nvmlDeviceGetFieldValues");
    processes_t processes_of = (processes_t)symbol("nvmlDeviceGetComputeRunningProcesses_v3");
    sample_t sample_of = (sample_t)symbol("nvmlGpmSampleGet");
    compare_t compare_samples = (compare_t)symbol("nvmlGpmMetricsGet");

    if (((init_t)symbol("nvmlInitWithFlags"))(0) != NVML_SUCCESS ||
        ((count_t)symbol("nvmlDeviceGetCount_v2"))(&card_count) != NVML_SUCCESS) {
        fprintf(stderr, "floor: the driver does not start\n");
        return 1;
    }
    if (card_count > CARDS)
        card_count = CARDS;
    for (unsigned int card = 0; card < card_count; card++) {
        nvmlFieldValue_t links = {.fieldId = NVML_FI_DEV_NVLINK_LINK_COUNT};
        int place = 0;
        if (((handle_t)symbol("nvmlDeviceGetHandleByIndex_v2"))(card, &cards[card]) != NVML_SUCCESS)
            return 1;
        fields_of(cards[card], 1, &links);
        nvmlGpmSupport_t support = {.version = NVML_GPM_SUPPORT_VERSION};
        if (((support_t)symbol("nvmlGpmQueryDeviceSupport"))(cards[card], &support) != NVML_SUCCESS || !support.isSupportedDevice)
            return 1;
        for (int half = 0; half < 2; half++)
            ((allocate_t)symbol("nvmlGpmSampleAlloc"))(&activity[card][half]);
        sample_of(cards[card], activity[card][0]);
        add_field(card, &place, NVML_FI_DEV_POWER_AVERAGE, 0);
        add_field(card, &place, NVML_FI_DEV_POWER_CURRENT_LIMIT, 0);
        add_field(card, &place, NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, 0);
        add_field(card, &place, NVML_FI_DEV_MEMORY_TEMP, 0);
        add_field(card, &place, NVML_FI_DEV_PERF_POLICY_POWER, 0);
        add_field(card, &place, NVML_FI_DEV_PERF_POLICY_SYNC_BOOST, 0);
        for (int sent = 0; sent < 2; sent++) {
            unsigned int id = sent ? NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX : NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX;
            for (unsigned int link = 0; link < links.value.uiVal && link < LINKS; link++)
                add_field(card, &place, id, link);
            add_field(card, &place, id, ALL_LINKS);
        }
        field_count = place;
    }

    static const unsigned int asked[] = {NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_SM_OCCUPANCY, NVML_GPM_METRIC_ANY_TENSOR_UTIL,
                                         NVML_GPM_METRIC_DRAM_BW_UTIL, NVML_GPM_METRIC_PCIE_TX_PER_SEC, NVML_GPM_METRIC_PCIE_RX_PER_SEC};
    for (unsigned int i = 0; i < compared.numMetrics; i++)
        compared.metrics[i].metricId = asked[i];

    unsigned long long *took = calloc((size_t)passes, sizeof *took);
    static nvmlSample_t ring[SAMPLES];
    static nvmlProcessInfo_t processes[PROCESSES];
    if (!took)
        return 1;
    for (long pass = 0; pass < passes; pass++) {
        unsigned long long begun = now_ns();
        for (unsigned int card = 0; card < card_count; card++) {
            nvmlDevice_t handle = cards[card];
            nvmlUtilization_t rates;
            nvmlValueType_t type;
            nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
            nvmlTemperature_v1_t temperature = {.version = nvmlTemperature_v1, .sensorType = NVML_TEMPERATURE_GPU};
            nvmlMarginTemperature_v1_t margin = {.version = nvmlMarginTemperature_v1};
            nvmlPstates_t state;
            unsigned int number, count = SAMPLES;
            unsigned long long large;

            rates_of(handle, &rates);
            /* As many samples as a tick of one second meets. */
            if (samples_of(handle, NVML_GPU_UTILIZATION_SAMPLES, newest[card], &type, &count, ring) == NVML_SUCCESS && count)
                newest[card] = ring[count - 1].timeStamp - SECOND_US;
            memory_of(handle, &memory);
            temperature_of(handle, &temperature);
            margin_of(handle, &margin);
            for (int kind = NVML_CLOCK_GRAPHICS; kind <= NVML_CLOCK_VIDEO; kind++)
                clock_of(handle, (nvmlClockType_t)kind, &number);
            state_of(handle, &state);
            reasons_of(handle, &large);
            compared.sample1 = activity[card][pass % 2];
            compared.sample2 = activity[card][1 - pass % 2];
            sample_of(handle, compared.sample2);
            compare_samples(&compared);
            fields_of(handle, field_count, fields[card]);
            count = PROCESSES;
            processes_of(handle, &count, processes);
        }
        took[pass] = now_ns() - begun;
    }
    qsort(took, (size_t)passes, sizeof *took, compare);
    printf("{\"median_ns\": %llu, \"least_ns\": %llu, \"cards\": %u, \"fields\": %d}\n", took[passes / 2], took[0], card_count, field_count);
    free(took);
    return 0;
}
