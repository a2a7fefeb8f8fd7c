"""Further small networks of transformers, for architectures.py."""

import inspect

import torch
from transformer_architectures import W

SMALL = dict(
    vocab_size=100,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    num_key_value_heads=2,
    head_dim=8,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    n_embd=32,
    n_layer=2,
    n_head=4,
    n_positions=64,
    max_position_embeddings=64,
    use_cache=False,
    d_kv=8,
    d_ff=64,
    num_layers=2,
    num_heads=4,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    cls_token_id=1,
    sep_token_id=2,
    n_inner=64,
    embed_dim=32,
    ffn_dim=64,
    n_layers=2,
    n_heads=4,
    rotary_dim=8,
    num_local_experts=4,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=32,
    state_size=8,
    emb_dim=32,
    dim=32,
    hidden_dim=64,
    embedding_size=32,
    word_embed_proj_dim=32,
    image_size=64,
    patch_size=16,
    d_inner=64,
    max_sequence_length=64,
    max_target_positions=64,
    max_source_positions=64,
    decoder_start_token_id=1,
    num_encoder_layers=2,
    num_decoder_layers=2,
    sliding_window=None,
)


def cfg(C, **over):
    ok = set()
    for k in C.__mro__:
        ok |= set(getattr(k, "__annotations__", {}))
    try:
        ok |= set(inspect.signature(C.__init__).parameters)
    except Exception:
        pass
    c = None
    kw = {k: v for k, v in SMALL.items() if k in ok or hasattr(C, k)}
    kw.update(over)
    kw = {k: v for k, v in kw.items() if v != "DEL"}
    c = C(**kw)
    c._attn_implementation = "eager"
    if hasattr(c, "use_cache"):
        try:
            c.use_cache = False
        except Exception:
            pass
    return c


def more_transformers(save):
    import transformers as H

    ids = torch.randint(3, 90, (2, 12))
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 8:] = 0
    dyn = {"ids": {0: "batch", 1: "seq"}, "mask": {0: "batch", 1: "seq"}}

    def go(
        name,
        model,
        keys=("input_ids", "attention_mask"),
        args=None,
        names=("ids", "mask"),
        dyn=dyn,
        **over,
    ):
        try:
            torch.manual_seed(0)
            M = getattr(H, model)
            c = cfg(M.config_class, **over)
            m = M(c)
        except Exception as e:
            print(name, "CONFIG", type(e).__name__, str(e)[:160].replace("\n", " "), flush=True)
            return
        save("hf_" + name, W(m, keys), args or (ids, mask), dyn, in_names=list(names))

    for n, m, o in [
        ("ernie", "ErnieModel", {}),
        ("roformer", "RoFormerModel", {}),
        ("layoutlm", "LayoutLMModel", {}),
        ("splinter", "SplinterModel", {}),
        ("nystromformer", "NystromformerModel", {}),
        ("longformer", "LongformerModel", dict(attention_window=[4, 4])),
        ("bigbird", "BigBirdModel", dict(attention_type="original_full")),
        ("rembert", "RemBertModel", {}),
        ("esm", "EsmModel", dict(mask_token_id=4, position_embedding_type="rotary")),
        ("ibert", "IBertModel", {}),
        ("luke", "LukeModel", {}),
        ("camembert", "CamembertModel", {}),
        ("data2vec", "Data2VecTextModel", {}),
        ("megatron", "MegatronBertModel", {}),
        ("mra", "MraModel", {}),
        ("flaubert", "FlaubertModel", {}),
        ("mpt", "MptForCausalLM", {}),
        ("codegen", "CodeGenForCausalLM", {}),
        ("gpt_bigcode", "GPTBigCodeForCausalLM", {}),
        ("stablelm", "StableLmForCausalLM", {}),
        ("starcoder2", "Starcoder2ForCausalLM", {}),
        ("phi3", "Phi3ForCausalLM", {}),
        ("olmo", "OlmoForCausalLM", {}),
        ("olmo2", "Olmo2ForCausalLM", {}),
        ("gemma2", "Gemma2ForCausalLM", dict(sliding_window=4)),
        ("gemma3", "Gemma3ForCausalLM", dict(sliding_window=4)),
        ("granite", "GraniteForCausalLM", {}),
        ("mamba", "MambaForCausalLM", {}),
        ("rwkv", "RwkvForCausalLM", dict(attention_hidden_size=32)),
        (
            "recurrent_gemma",
            "RecurrentGemmaForCausalLM",
            dict(lru_width=32, attention_window_size=4),
        ),
        ("qwen3", "Qwen3ForCausalLM", {}),
        ("persimmon", "PersimmonForCausalLM", {}),
        ("smollm3", "SmolLM3ForCausalLM", {}),
        ("openai_gpt", "OpenAIGPTLMHeadModel", {}),
        ("ctrl", "CTRLModel", dict(dff=64)),
        ("biogpt", "BioGptForCausalLM", {}),
        ("nemotron", "NemotronForCausalLM", {}),
        ("lfm2", "Lfm2ForCausalLM", dict(layer_types=["conv", "full_attention"])),
    ]:
        keys = (
            ("input_ids",)
            if n in ("mamba", "mamba2", "rwkv", "fnet", "openai_gpt_")
            else ("input_ids", "attention_mask")
        )
        go(
            n,
            m,
            keys=keys,
            args=(ids, mask)[: len(keys)],
            names=("ids", "mask")[: len(keys)],
            dyn={k: v for k, v in dyn.items() if k in ("ids", "mask")[: len(keys)]},
            **o,
        )
    seq = dict(
        keys=("input_ids", "attention_mask", "decoder_input_ids"),
        args=(ids, mask, ids[:, :7]),
        names=("ids", "mask", "dec"),
        dyn={**dyn, "dec": {0: "batch", 1: "dseq"}},
    )
    for n, m, o in [
        ("pegasus", "PegasusForConditionalGeneration", {}),
        ("mbart", "MBartForConditionalGeneration", {}),
        ("m2m100", "M2M100ForConditionalGeneration", {}),
        (
            "led",
            "LEDForConditionalGeneration",
            dict(
                attention_window=[4, 4],
                max_encoder_position_embeddings=64,
                max_decoder_position_embeddings=64,
            ),
        ),
        ("longt5", "LongT5ForConditionalGeneration", dict(local_radius=4)),
        ("switch", "SwitchTransformersForConditionalGeneration", {}),
        ("mt5", "MT5ForConditionalGeneration", {}),
        ("umt5", "UMT5ForConditionalGeneration", {}),
        ("blenderbot", "BlenderbotForConditionalGeneration", {}),
        (
            "fsmt",
            "FSMTForConditionalGeneration",
            dict(src_vocab_size=100, tgt_vocab_size=100, langs=["a", "b"]),
        ),
        (
            "bigbird_pegasus",
            "BigBirdPegasusForConditionalGeneration",
            dict(attention_type="original_full"),
        ),
        ("pegasus_x", "PegasusXForConditionalGeneration", dict(block_size=4, num_global_tokens=4)),
    ]:
        go(n, m, **seq, **o)
    img = torch.randn(2, 3, 64, 64)
    vi = dict(keys=("pixel_values",), args=(img,), names=("x",), dyn={"x": {0: "batch"}})
    for n, m, o in [
        (
            "swinv2",
            "Swinv2Model",
            dict(num_heads=[2, 4], depths=[1, 1], window_size=4, patch_size=4, embed_dim=16),
        ),
        (
            "dpt",
            "DPTForDepthEstimation",
            dict(
                image_size=64,
                backbone_out_indices=[0, 1, 2, 3],
                num_hidden_layers=4,
                neck_hidden_sizes=[8, 8, 16, 16],
                fusion_hidden_size=16,
            ),
        ),
        (
            "levit",
            "LevitModel",
            dict(
                patch_size=16,
                num_attention_heads=[2, 4, 4],
                hidden_sizes=[32, 64, 64],
                depths=[1, 1, 1],
                image_size=64,
            ),
        ),
        (
            "pvt",
            "PvtModel",
            dict(
                image_size=64,
                hidden_sizes=[16, 32, 64, 64],
                depths=[1, 1, 1, 1],
                num_attention_heads=[1, 2, 4, 4],
                patch_sizes=[4, 2, 2, 2],
            ),
        ),
        (
            "pvtv2",
            "PvtV2Model",
            dict(
                hidden_sizes=[16, 32, 64, 64],
                depths=[1, 1, 1, 1],
                num_attention_heads=[1, 2, 4, 4],
                patch_sizes=[7, 3, 3, 3],
            ),
        ),
        (
            "glpn",
            "GLPNForDepthEstimation",
            dict(
                num_attention_heads=[1, 2, 4, 4],
                hidden_sizes=[16, 32, 32, 32],
                depths=[1, 1, 1, 1],
                decoder_hidden_size=16,
            ),
        ),
        (
            "focalnet",
            "FocalNetModel",
            dict(
                image_size=64,
                patch_size=4,
                embed_dim=16,
                depths=[1, 1],
                hidden_sizes=[16, 32],
                focal_levels=[2, 2],
                focal_windows=[3, 3],
            ),
        ),
        ("resnet", "ResNetModel", dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])),
        (
            "bit",
            "BitModel",
            dict(embedding_size=8, hidden_sizes=[32, 64], depths=[1, 1], num_groups=4),
        ),
        ("dinov3", "DINOv3ViTModel", {}),
        ("ijepa", "IJepaModel", {}),
        (
            "hiera",
            "HieraModel",
            dict(
                image_size=[64, 64],
                embed_dim=16,
                patch_size=[7, 7],
                patch_stride=[4, 4],
                depths=[1, 1, 1],
                num_heads=[1, 2, 4],
                masked_unit_size=[8, 8],
                query_stride=[2, 2],
                num_query_pool=2,
            ),
        ),
        ("vitdet", "VitDetModel", dict(image_size=64, window_block_indices=[0], window_size=2)),
        ("timesformer", "TimesformerModel", {}),
        (
            "donut",
            "DonutSwinModel",
            dict(num_heads=[2, 4], depths=[1, 1], window_size=4, patch_size=4, embed_dim=16),
        ),
        ("swiftformer", "SwiftFormerModel", {}),
        ("textnet", "TextNetModel", {}),
        ("vit_msn", "ViTMSNModel", {}),
        ("aimv2", "Aimv2VisionModel", {}),
    ]:
        if o == "skip":
            continue
        a = dict(vi)
        if n == "timesformer":
            a["args"] = (torch.randn(1, 4, 3, 64, 64),)
            o = dict(num_frames=4)
        go(n, m, **a, **o)
    wav = torch.randn(2, 3200)
    sound = dict(
        conv_dim=(32, 32, 32),
        conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 3),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        num_feat_extract_layers=3,
        mask_time_prob=0.0,
        pad_token_id=0,
    )
    au = dict(keys=("input_values",), args=(wav,), names=("x",), dyn={"x": {0: "batch", 1: "time"}})
    for n, m, o in [
        ("unispeech", "UniSpeechSatModel", {}),
        ("sew", "SEWModel", {}),
        ("sewd", "SEWDModel", {}),
        ("data2vec_audio", "Data2VecAudioModel", {}),
    ]:
        if m != "skip":
            go(n, m, **au, **{**sound, **o})
    go(
        "encodec",
        "EncodecModel",
        keys=("input_values",),
        args=(torch.randn(1, 1, 640),),
        names=("x",),
        dyn=None,
        num_filters=8,
        hidden_size=16,
        codebook_size=32,
        codebook_dim=16,
    )
    go(
        "speech2text",
        "Speech2TextForConditionalGeneration",
        keys=("input_features", "attention_mask", "decoder_input_ids"),
        args=(torch.randn(2, 40, 16), torch.ones(2, 40, dtype=torch.int64), ids[:, :6]),
        names=("x", "m", "dec"),
        dyn=None,
        input_feat_per_channel=16,
        conv_channels=32,
        max_source_positions=64,
    )
    go(
        "ast",
        "ASTModel",
        keys=("input_values",),
        args=(torch.randn(2, 64, 32),),
        names=("x",),
        dyn={"x": {0: "b"}},
        max_length=64,
        num_mel_bins=32,
    )
    go(
        "clip",
        "CLIPModel",
        keys=("input_ids", "pixel_values", "attention_mask"),
        args=(ids, torch.randn(2, 3, 224, 224), mask),
        names=("ids", "x", "mask"),
        dyn=None,
        text_config=dict(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            vocab_size=100,
            max_position_embeddings=64,
        ),
        vision_config=dict(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=224,
            patch_size=32,
        ),
    )
    go(
        "detr",
        "DetrForObjectDetection",
        keys=("pixel_values",),
        args=(img,),
        names=("x",),
        dyn=None,
        use_timm_backbone=True,
        use_pretrained_backbone=False,
        backbone="resnet18",
        backbone_config=None,
        num_queries=5,
    )
    go(
        "layoutlmv3",
        "LayoutLMv3Model",
        keys=("input_ids", "bbox", "attention_mask", "pixel_values"),
        args=(ids, torch.randint(0, 50, (2, 12, 4)), mask, torch.randn(2, 3, 64, 64)),
        names=("ids", "bbox", "mask", "x"),
        dyn=None,
        input_size=64,
        coordinate_size=6,
        shape_size=4,
        max_2d_position_embeddings=64,
    )
