"""Small networks of transformers, for architectures.py."""

import torch


class W(torch.nn.Module):
    def __init__(s, m, keys, out=None):
        super().__init__()
        s.m = m
        s.keys = keys

    def forward(s, *a):
        r = s.m(**dict(zip(s.keys, a)), return_dict=True)
        return tuple(v for v in r.values() if torch.is_tensor(v))


def transformers(save):
    import transformers as H

    ids = torch.randint(3, 90, (2, 12))
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 8:] = 0
    base = dict(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
    dyn = {"ids": {0: "batch", 1: "seq"}, "mask": {0: "batch", 1: "seq"}}

    def enc(
        name,
        cls,
        cfg,
        keys=("input_ids", "attention_mask"),
        args=None,
        dynamic=dyn,
        names=("ids", "mask"),
        **kw,
    ):
        try:
            cfg._attn_implementation = "eager"
            m = cls(cfg)
        except Exception as e:
            print(name, "CONFIG", e)
            return
        save("hf_" + name, W(m, keys), args or (ids, mask), dynamic, in_names=list(names), **kw)

    enc("bert", H.BertModel, H.BertConfig(**base))
    enc("bert_mlm", H.BertForMaskedLM, H.BertConfig(**base))
    enc("roberta", H.RobertaModel, H.RobertaConfig(**base))
    enc("electra", H.ElectraModel, H.ElectraConfig(**base, embedding_size=16))
    enc(
        "distilbert",
        H.DistilBertModel,
        H.DistilBertConfig(vocab_size=100, dim=32, n_layers=2, n_heads=4, hidden_dim=64),
    )
    enc("albert", H.AlbertModel, H.AlbertConfig(**base, embedding_size=16))
    enc("mpnet", H.MPNetModel, H.MPNetConfig(**base))
    enc(
        "deberta",
        H.DebertaV2Model,
        H.DebertaV2Config(**base, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    )
    enc("squeezebert", H.SqueezeBertModel, H.SqueezeBertConfig(**base, embedding_size=32))
    enc(
        "mobilebert",
        H.MobileBertModel,
        H.MobileBertConfig(
            **{**base, "hidden_size": 32, "intra_bottleneck_size": 32, "embedding_size": 16}
        ),
    )
    enc("convbert", H.ConvBertModel, H.ConvBertConfig(**base, embedding_size=32))
    enc(
        "fnet",
        H.FNetModel,
        H.FNetConfig(
            **{k: v for k, v in base.items() if k != "num_attention_heads"},
            use_tpu_fourier_optimizations=False,
        ),
        keys=("input_ids",),
        args=(ids,),
        dynamic=None,
        names=("ids",),
    )
    enc("xlm_roberta", H.XLMRobertaModel, H.XLMRobertaConfig(**base))
    enc(
        "modernbert",
        H.ModernBertModel,
        H.ModernBertConfig(
            **base, pad_token_id=0, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2
        ),
    )
    dec = dict(use_cache=False)
    enc(
        "gpt2",
        H.GPT2LMHeadModel,
        H.GPT2Config(
            vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64, use_cache=False
        ),
    )
    enc(
        "gpt_neo",
        H.GPTNeoForCausalLM,
        H.GPTNeoConfig(
            vocab_size=100,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            max_position_embeddings=64,
            use_cache=False,
        ),
    )
    enc("gpt_neox", H.GPTNeoXForCausalLM, H.GPTNeoXConfig(**base, **dec))
    enc(
        "gptj",
        H.GPTJForCausalLM,
        H.GPTJConfig(
            vocab_size=100,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=64,
            rotary_dim=8,
            use_cache=False,
        ),
    )
    enc(
        "opt",
        H.OPTForCausalLM,
        H.OPTConfig(
            vocab_size=100,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=64,
            max_position_embeddings=64,
            word_embed_proj_dim=32,
            use_cache=False,
        ),
    )
    enc("llama", H.LlamaForCausalLM, H.LlamaConfig(**base, num_key_value_heads=2, **dec))
    enc(
        "mistral",
        H.MistralForCausalLM,
        H.MistralConfig(**base, num_key_value_heads=2, sliding_window=None, **dec),
    )
    enc("qwen2", H.Qwen2ForCausalLM, H.Qwen2Config(**base, num_key_value_heads=2, **dec))
    enc(
        "gemma", H.GemmaForCausalLM, H.GemmaConfig(**base, num_key_value_heads=2, head_dim=8, **dec)
    )
    enc("phi", H.PhiForCausalLM, H.PhiConfig(**base, **dec))
    enc(
        "bloom",
        H.BloomForCausalLM,
        H.BloomConfig(vocab_size=100, hidden_size=32, n_layer=2, n_head=4, use_cache=False),
    )
    enc(
        "t5_encoder",
        H.T5EncoderModel,
        H.T5Config(
            vocab_size=100,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            is_encoder_decoder=False,
        ),
    )
    seq2seq = dict(
        keys=("input_ids", "attention_mask", "decoder_input_ids"),
        args=(ids, mask, ids[:, :7]),
        dynamic={**dyn, "dec": {0: "batch", 1: "dseq"}},
        names=("ids", "mask", "dec"),
    )
    two_stacks = dict(
        vocab_size=100,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        use_cache=False,
    )
    enc(
        "t5",
        H.T5ForConditionalGeneration,
        H.T5Config(
            vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, use_cache=False
        ),
        **seq2seq,
    )
    enc(
        "bart",
        H.BartForConditionalGeneration,
        H.BartConfig(
            **two_stacks,
            max_position_embeddings=64,
        ),
        **seq2seq,
    )
    enc(
        "marian",
        H.MarianMTModel,
        H.MarianConfig(
            **two_stacks,
            max_position_embeddings=64,
            pad_token_id=99,
            decoder_start_token_id=0,
        ),
        **seq2seq,
    )
    wav = torch.randn(1, 3200)
    sound = dict(
        conv_dim=(32, 32, 32),
        conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 3),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        num_feat_extract_layers=3,
        mask_time_prob=0.0,
    )
    for name, model, config in (
        ("wav2vec2", H.Wav2Vec2Model, H.Wav2Vec2Config),
        ("hubert", H.HubertModel, H.HubertConfig),
    ):
        enc(
            name,
            model,
            config(**base, **sound),
            keys=("input_values",),
            args=(wav,),
            dynamic={"wav": {0: "batch", 1: "time"}},
            names=("wav",),
        )
    enc(
        "whisper",
        H.WhisperForConditionalGeneration,
        H.WhisperConfig(
            **two_stacks,
            max_source_positions=50,
            max_target_positions=40,
            num_mel_bins=20,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            suppress_tokens=[],
            begin_suppress_tokens=[],
        ),
        keys=("input_features", "decoder_input_ids"),
        args=(torch.randn(1, 20, 100), ids[:1, :5]),
        dynamic={"dec": {0: "b", 1: "n"}},
        names=("mel", "dec"),
    )
    px = torch.randn(2, 3, 32, 32)
    vd = {"x": {0: "batch"}}
    v = dict(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
    )

    def vis(n, c, cfg, a=None, d=vd):
        enc(
            n,
            c,
            cfg,
            keys=("pixel_values",),
            args=(px if a is None else a,),
            dynamic=d,
            names=("x",),
        )

    vis("vit", H.ViTModel, H.ViTConfig(**v))
    vis("deit", H.DeiTModel, H.DeiTConfig(**v))
    vis("beit", H.BeitModel, H.BeitConfig(**v, use_relative_position_bias=True))
    vis(
        "dinov2",
        H.Dinov2Model,
        H.Dinov2Config(**{k: x for k, x in v.items() if k != "intermediate_size"}),
    )
    vis("clip_vision", H.CLIPVisionModel, H.CLIPVisionConfig(**v))
    vis("siglip", H.SiglipVisionModel, H.SiglipVisionConfig(**v))
    vis(
        "convnextv2",
        H.ConvNextV2Model,
        H.ConvNextV2Config(hidden_sizes=[16, 32, 32, 64], depths=[1, 1, 1, 1]),
        torch.randn(2, 3, 64, 64),
    )
    vis(
        "segformer",
        H.SegformerForSemanticSegmentation,
        H.SegformerConfig(
            hidden_sizes=[16, 32, 32, 64],
            depths=[1, 1, 1, 1],
            decoder_hidden_size=32,
            num_attention_heads=[1, 2, 2, 4],
        ),
        torch.randn(1, 3, 64, 64),
    )
    vis(
        "dpt",
        H.DPTForDepthEstimation,
        H.DPTConfig(
            **v,
            backbone_out_indices=[0, 0, 1, 1],
            neck_hidden_sizes=[8, 16, 32, 32],
            fusion_hidden_size=16,
            is_hybrid=False,
        ),
        torch.randn(1, 3, 32, 32),
        None,
    )
    vis(
        "swin",
        H.SwinModel,
        H.SwinConfig(
            image_size=32,
            patch_size=4,
            embed_dim=16,
            depths=[1, 1],
            num_heads=[2, 4],
            window_size=4,
        ),
    )
    vis(
        "mobilevit",
        H.MobileViTModel,
        H.MobileViTConfig(
            image_size=64, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 64]
        ),
        torch.randn(1, 3, 64, 64),
        None,
    )
    vis(
        "poolformer",
        H.PoolFormerModel,
        H.PoolFormerConfig(hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1]),
        torch.randn(1, 3, 64, 64),
    )
    vis(
        "mobilenet_v2",
        H.MobileNetV2Model,
        H.MobileNetV2Config(depth_multiplier=0.35),
        torch.randn(1, 3, 64, 64),
    )
    vis(
        "regnet",
        H.RegNetModel,
        H.RegNetConfig(
            embedding_size=16, hidden_sizes=[16, 32, 32, 64], depths=[1, 1, 1, 1], groups_width=8
        ),
        torch.randn(1, 3, 64, 64),
    )
    vis(
        "yolos",
        H.YolosForObjectDetection,
        H.YolosConfig(**{**v, "image_size": [32, 32]}, num_detection_tokens=5),
        torch.randn(1, 3, 32, 32),
        None,
    )
